"""The gradient probe of "Luck Is Not Skill": what pairing does to one checkpoint's gradients."""

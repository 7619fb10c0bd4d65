"""Reports: one self-contained HTML page from a study, and its curves as a picture file."""

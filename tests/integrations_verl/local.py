"""A model client over the local sampler, and verl's own configuration around it."""

import os

from hydra import compose, initialize_config_module

from evenhand.draws import policy_stream
from evenhand.integrations.verl import desk
from evenhand.policy.model import Policy, shipped

LOOP = """
- name: evenhand
  _target_: evenhand.integrations.verl.loop.EvenhandLoop
  evenhand: {said}
"""


class LocalClient:
    """`generate` as verl's LLMServerClient has it; the model is loaded where it is used."""

    def __init__(self, temperature=1.0, most=48):
        self.temperature, self.most = temperature, most
        self._policy = None

    def __getstate__(self):
        return {**self.__dict__, "_policy": None}

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        import torch
        from verl.workers.rollout.replica import TokenOutput

        from evenhand.policy.decoder import decoder_for
        from evenhand.policy.sampler import Batch, Row, Sampling

        if self._policy is None:
            torch.set_num_threads(1)
            self._policy = Policy.load("warmstart")
        policy = self._policy
        seat = desk().seat
        stream = policy_stream(0, seat.step, seat.group, seat.index, len(prompt_ids))
        row, ids, logprobs = Row(stream.random(self.most)), [], []
        decoder = decoder_for(policy.model)
        decoder.begin()
        batch = Batch(decoder, Sampling(self.temperature))
        with torch.inference_mode():
            batch.open([list(prompt_ids)], [[row]])
            while len(ids) < self.most:
                (token,), (logprob,) = batch.draw()
                ids.append(token)
                logprobs.append(logprob)
                if token == policy.chat.end_of_turn:
                    break
                batch.advance({})
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )


def config(folder, said, *more):
    """verl's trainer configuration, with the loop of `said` (YAML, one line) as its default."""
    path = folder / "loop.yaml"
    path.write_text(LOOP.format(said=said))
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={shipped()}",
                f"{rollout}.name=vllm",
                f"{rollout}.n=4",
                f"{rollout}.prompt_length=640",
                f"{rollout}.response_length=320",
                f"{rollout}.calculate_log_probs=True",
                f"{rollout}.multi_turn.format=hermes",
                f"{rollout}.multi_turn.max_assistant_turns=6",
                f"{rollout}.agent.default_agent_loop=evenhand",
                f"{rollout}.agent.agent_loop_config_path={path}",
                *more,
            ],
        )


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

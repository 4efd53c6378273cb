"""A simulation of vLLM's scheduler: real queues, blocks, prefix cache and events, modelled time, made-up tokens."""

from .args import MockerArgs, Reasoning
from .blocks import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from .engine import MockerEngine, MockerRunning
from .profile import Profile, ProfileTiming, read_profile
from .ranks import Iteration, Ranks
from .scheduler import Finished, Load
from .timing import PolynomialTiming, Timing
from .tokens import Vocabulary, answer_for

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Finished",
    "Iteration",
    "KvEvent",
    "Load",
    "MockerArgs",
    "MockerEngine",
    "MockerRunning",
    "PolynomialTiming",
    "Profile",
    "ProfileTiming",
    "Ranks",
    "Reasoning",
    "Timing",
    "Vocabulary",
    "answer_for",
    "read_profile",
]

"""bn_engine, a continuous-batching LLM engine.

`Model` opens a model, `Engine` runs requests on it. Options, constants, errors and tuples have the names and
comments of the C header, without its prefixes: `_header.py` is made of it.
"""

from ._adapter import Adapter as Adapter
from ._async import AsyncStream as AsyncStream
from ._decide import Decided as Decided
from ._engine import Engine as Engine
from ._error import Error as Error
from ._header import *  # noqa: F403
from ._library import version
from ._model import Model as Model
from ._request import Output as Output
from ._request import Stream as Stream
from ._score import Score as Score
from ._types import Picture as Picture
from ._types import Pixels as Pixels

__version__ = version()

"""CUDA on paper: trainings whose tensors say ``cuda:0`` on a machine without a GPU.

Values are computed on the CPU; where a tensor would be, ``torch._subclasses.FakeTensorMode`` decides, call by call: each is
made twice, first with fake tensors of the same shapes on the devices that they are said to be on. A mix of devices raises
there, as CUDA would have it. What FakeTensorMode cannot do in a build without CUDA is replaced here and nowhere else: autograd
(it wants streams, so graphs are those of the CPU), values (the CPU's; who asks for one, or sends one to the device, is noted,
because the host waits there), kernels that have no fake one, SB3's choice of a device, and the device guard.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch as th
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

CUDA, CPU = th.device("cuda:0"), th.device("cpu")
#: FakeTensorMode says so of what depends on values.
ASKS = (DataDependentOutputException, DynamicOutputShapeException)
#: What hands a value, or a number that depends on values, to Python.
HANDS_OUT = {getattr(th.Tensor, name) for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")}
#: Their CUDA kernels have no fake ones.
NOT_FAKED = {th.gru_cell, th._VF.gru}  # type: ignore[attr-defined]
#: What they make of numbers has to travel.
FROM_HOST = {th.tensor, th.as_tensor, th.asarray}
#: Of the CPU alone.
HOST_ONLY = {th.Tensor.numpy, th.Tensor.__array__}
#: Nothing here has a device: graphs, hooks, copies of whole objects.
AS_IT_IS = {
    th.Tensor.backward, th.Tensor.__deepcopy__, th.Tensor.__reduce_ex__, th.Tensor.__hash__, th.Tensor.requires_grad_,
    th.Tensor.data.__set__, th.Tensor.grad.__set__, th.Tensor.requires_grad.__set__, th.autograd.grad, th.device,
    th._C._nn._parse_to,
}  # fmt: skip


class Found(NamedTuple):
    """What a dry run has said of a call."""

    devices: Any  #: of every part of the result; or one for all
    asks: bool  #: for a value


class OnPaper(TorchFunctionMode):
    """Keeps the books of which storage is where.

    :ivar asked: how often each function of the package has asked for a value, by ``module.function``
    :ivar sent: how often each has sent one to the device
    """

    #: Dry runs of calls that were made before.
    _found: ClassVar[dict[Any, Found]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.queried: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._where: dict[int, th.device] = {}
        self._fake = FakeTensorMode()

    def device_of(self, tensor: th.Tensor) -> th.device:
        """Where it is said to be."""
        return self._where.get(_storage(tensor), CPU)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == th.Tensor.device.__get__:
            return self.device_of(args[0])
        if func in (th.Tensor.is_cuda.__get__, th.Tensor.is_cpu.__get__):
            return (self.device_of(args[0]) == CUDA) == (func == th.Tensor.is_cuda.__get__)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, th.Tensor)]
        if getattr(func, "__name__", "") == "__get__" or func in AS_IT_IS:
            result, device = func(*args, **kwargs), self.device_of(args[0]) if isinstance(args[0], th.Tensor) else CPU
            return tree_map(lambda x: self._put(x, device, given), result)
        if func in HOST_ONLY:
            if self.device_of(args[0]) == CUDA:
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
            return func(*args, **kwargs)
        devices = self._devices(func, args, kwargs, given)
        found = func(*tree_map(_at_home, args), **tree_map(_at_home, kwargs))
        parts, form = tree_flatten(found)
        places = repeat(devices) if isinstance(devices, th.device) else devices
        return tree_unflatten([self._put(x, device, given) for x, device in zip(parts, places, strict=False)], form)

    def _devices(self, func: Any, args: Any, kwargs: Any, given: list[th.Tensor]) -> Any:
        """Device of the result: of every part, in its form, or one for all where FakeTensorMode cannot say."""
        places = {self.device_of(x) for x in given}
        leaves, form = tree_flatten((args, kwargs))
        if (CUDA in places or any(map(_is_cuda, leaves))) and any(isinstance(x, th.Generator) for x in leaves):
            raise RuntimeError(f"{func}: expected a 'cuda' device type for generator but found 'cpu'")
        if not given:  # whatever makes a tensor of none
            device = next((CUDA for x in leaves if _is_cuda(x)), CPU)
            self._note(device == CUDA and func in FROM_HOST, self.sent)
            return device
        key: Any = func, form, tuple(map(self._looks, leaves))
        try:
            known = self._found.get(key)
        except TypeError:  # an argument that cannot be hashed
            known, key = None, None
        found = known or self._dry_run(func, args, kwargs, given, places)
        if key is not None:
            self._found[key] = found
        self._note(found.asks and CUDA in places, self.queried)
        self._note(CUDA not in places and isinstance(found.devices, list) and CUDA in found.devices, self.sent)
        return found.devices

    @staticmethod
    def _note(waits: bool, counter: Counter[str]) -> None:
        if waits:
            counter[_who()] += 1

    def _dry_run(self, func: Any, args: Any, kwargs: Any, given: list[th.Tensor], places: set[th.device]) -> Found:
        """The call with fake tensors."""
        try:
            if func in HANDS_OUT:
                raise DataDependentOutputException(func)
            if func in NOT_FAKED:
                raise UnsupportedOperatorException(func)
            with self._fake, th.no_grad():
                fakes = func(*tree_map(self._imitation, args), **tree_map(self._imitation, kwargs))
            return Found([x.device if isinstance(x, th.Tensor) else CPU for x in tree_leaves(fakes)], False)
        except (*ASKS, UnsupportedOperatorException) as error:
            mixed = len({self.device_of(x) for x in given if x.dim() > 0}) > 1
            if mixed and func is not th.Tensor.__getitem__:  # an index may be on the CPU
                raise RuntimeError(f"{func}: tensors on {sorted(map(str, places))}") from error
            return Found(CUDA if CUDA in places else CPU, isinstance(error, ASKS))

    def _looks(self, x: Any) -> Any:
        """What a call's devices depend on."""
        return (x.shape, x.stride(), x.dtype, self.device_of(x)) if isinstance(x, th.Tensor) else x

    def _imitation(self, x: Any) -> Any:
        if not isinstance(x, th.Tensor):
            return CUDA if _is_cuda(x) else x
        return FakeTensor(self._fake, th.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), self.device_of(x))

    def _put(self, found: Any, device: Any, given: list[th.Tensor]) -> Any:
        """Note where a tensor is. A given one that comes back on another device has been copied."""
        if isinstance(found, th.Tensor):
            if self.device_of(found) != device and _storage(found) in map(_storage, given):
                found = found.clone()
            self._where[_storage(found)] = device
        return found


def _storage(tensor: th.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _at_home(x: Any) -> Any:
    """An argument of the call that computes values."""
    return CPU if _is_cuda(x) else x


def _is_cuda(x: Any) -> bool:
    return isinstance(x, th.device | str) and str(x).startswith("cuda")


def _who() -> str:
    """The function of the package that is at work, as ``module.function``."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("sb_grpo."):
            return f"{module.removeprefix('sb_grpo.')}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "outside"


#: Modules of Stable-Baselines3 that look up a device: its own function says "cpu" where there is no GPU.
LOOK_UP = ("base_class", "buffers", "utils", "policies")


@contextmanager
def guarded() -> Iterator[None]:
    """Indexing wants CUDA's device guard even of fake tensors; a build without CUDA has none: the meta device's will do."""
    library = ctypes.CDLL(str(Path(th.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # of c10::DeviceType
    before, registry[cuda] = registry[cuda], registry[meta]
    try:
        yield
    finally:
        registry[cuda] = before


@contextmanager
def cuda_on_paper() -> Iterator[OnPaper]:
    """Within, ``device="cuda"`` is there."""
    with pytest.MonkeyPatch.context() as patch, guarded(), OnPaper() as mode:
        for name in LOOK_UP:
            module = importlib.import_module(f"stable_baselines3.common.{name}")
            patch.setattr(module, "get_device", lambda device="auto": CUDA if str(device).startswith("cuda") else CPU)
        yield mode

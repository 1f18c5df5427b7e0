"""A queue in which namespaces take turns: a thousand items of one do not delay the first of another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Within a namespace, first in first out."""

    def __init__(self) -> None:
        self._by_namespace: OrderedDict[str, deque[T]] = OrderedDict()
        """In the order of their turns."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, namespace: str, item: T) -> None:
        self._by_namespace.setdefault(namespace, deque()).append(item)
        self._size += 1

    def pop(self, may: Callable[[str], bool] = lambda _: True) -> tuple[str, T] | None:
        """The next item, from a namespace for which `may` is true; None when there is none."""
        namespace = next(filter(may, self._by_namespace), None)
        if namespace is None:
            return None
        items = self._by_namespace.pop(namespace)
        item = items.popleft()
        if items:
            self._by_namespace[namespace] = items
        self._size -= 1
        return namespace, item

    def drop(self) -> T:
        """Remove and return the last item of the longest namespace. Raises ValueError when the queue is empty."""
        namespace = max(self._by_namespace, key=lambda name: len(self._by_namespace[name]))
        items = self._by_namespace[namespace]
        item = items.pop()
        if not items:
            del self._by_namespace[namespace]
        self._size -= 1
        return item

    def clear(self) -> None:
        self._by_namespace.clear()
        self._size = 0

"""The short way through ``next()``, compiled: the twin of `_short_way_py`.

No code of Python runs between two steps here but what is called for a batch, so Ctrl-C
cannot strike in between. Unlike its twin, for which that would be dear, it looks at the
clock now and then: if a few batches took long, the next one takes the long way and is
timed.

Guards: `owner` names the thread to which the short way is open, `is_taken` says that a
thread is on it. Whoever goes it takes it first and then looks again whether it is the
owner; whoever arrives (`_arrive`, one thread at a time) becomes the owner first and
then looks whether it is taken. Both numbers are atomic, so one of the two sees the
other, and the fields belong to the one that goes on. `Slot.pending` is written by that
thread and read by any.
"""

cimport cython
from cpython.object cimport PyObject

import os
import threading
import time

from dataloader._guard import FORKS
from dataloader._marks import END, NotInWorker
from dataloader.errors import ConcurrentNextError

__all__ = ["Presence", "ShortWay", "Slot", "local"]

cdef extern from *:
    """
    /* With the GIL no other thread runs between two steps. */
    #ifdef Py_GIL_DISABLED
    #define dl_load_int(place) _Py_atomic_load_int(place)
    #define dl_store_int(place, value) _Py_atomic_store_int(place, value)
    #define dl_load_word(place) _Py_atomic_load_uintptr(place)
    #define dl_store_word(place, value) _Py_atomic_store_uintptr(place, value)
    static inline int dl_take(int *place) {
        int expected = 0;
        return _Py_atomic_compare_exchange_int(place, &expected, 1);
    }
    #else
    #define dl_load_int(place) (*(place))
    #define dl_store_int(place, value) (*(place) = (value))
    #define dl_load_word(place) (*(place))
    #define dl_store_word(place, value) (*(place) = (value))
    static inline int dl_take(int *place) {
        int is_free = *place == 0;
        *place = 1;
        return is_free;
    }
    #endif

    #if defined(_MSC_VER)
    static __declspec(thread) PyObject *dl_scope = NULL;
    #else
    static __thread PyObject *dl_scope = NULL;
    #endif
    """
    # The calling thread's scope, which `_Local` keeps.
    PyObject *dl_scope
    ctypedef size_t uintptr_t
    int dl_load_int(int *place) noexcept
    void dl_store_int(int *place, int value) noexcept
    uintptr_t dl_load_word(uintptr_t *place) noexcept
    void dl_store_word(uintptr_t *place, uintptr_t value) noexcept
    bint dl_take(int *place) noexcept
    const int DATALOADER_IS_CHECKED

cdef extern from "Python.h":
    uintptr_t PyThread_get_thread_ident() noexcept
    PyObject *PyIter_Next(object iterator) except? NULL
    object PyObject_Vectorcall(
        object function, PyObject *const *args, size_t count, PyObject *names
    )
    void Py_XDECREF(PyObject *reference)

IS_CHECKED = bool(DATALOADER_IS_CHECKED)
"""Whether the kernels check their indices; they were built for debugging then."""

cdef object _end = END
cdef object _clock = time.monotonic
# `FORKS.count`, as a number of C.
cdef int _forks = FORKS.count


def _note_fork():
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

cdef enum:
    LOOK_EVERY = 8

# Longer than so many batches take that are worth the short way.
cdef double SLOW_S = 1e-3

cdef enum:
    IDLE = 0
    ACTIVE = 1
    ASKING = 2


cdef class Presence:
    """Whether a thread is loading: the part of its `Scope` that the short way changes."""

    cdef int state

    @property
    def is_active(self):
        return None if self.state == ASKING else self.state == ACTIVE

    @is_active.setter
    def is_active(self, value):
        self.state = ASKING if value is None else ACTIVE if value else IDLE


@cython.no_gc_clear
cdef class _Keeper:
    """Keeps a thread's scope, to which `dl_scope` points."""

    cdef object scope

    def __dealloc__(self):
        # The thread ends: nobody must find the scope while it is let go. Or it is a
        # child after a fork, in which the thread that is left lets go the others'.
        global dl_scope
        if dl_scope == <PyObject *>self.scope:
            dl_scope = NULL


class _Keepers(threading.local):
    """One for each thread."""

    def __init__(self):
        self.keeper = _Keeper()


cdef class _Local:
    """What the calling thread is loading, None while it loads nothing."""

    cdef object keepers

    def __init__(self):
        self.keepers = _Keepers()

    @property
    def scope(self):
        return None if dl_scope == NULL else <object>dl_scope

    @scope.setter
    def scope(self, value):
        global dl_scope
        cdef _Keeper keeper = self.keepers.keeper
        before = keeper.scope  # let go at the end, when nobody finds it any more
        keeper.scope = value
        dl_scope = NULL if value is None else <PyObject *>value


local = _Local()


cdef class Slot:
    """What was taken from a feed last, without the feed and its sampler."""

    cdef object task
    cdef int mark

    def __init__(self):
        self.mark = -1

    @property
    def pending(self):
        with cython.critical_section(self):
            return self.task

    @pending.setter
    def pending(self, task):
        self.put(task)

    cdef int put(self, object task) except -1:
        with cython.critical_section(self):
            self.task = task
        return 0

    @property
    def short_mark(self):
        return dl_load_int(&self.mark)

    @short_mark.setter
    def short_mark(self, int number):
        dl_store_int(&self.mark, number)


cdef class ShortWay:
    """What an iterator needs to load batches in the thread that calls ``next()``."""

    cdef Presence place
    cdef uintptr_t owner
    cdef int is_taken
    # Batches since the last look at the clock, and when that was.
    cdef int since
    cdef double looked_at
    cdef public Slot _slot
    cdef public object _collate_fn
    cdef public object _fetch
    cdef public object _probe
    cdef public object _source
    cdef public object _tasks

    @property
    def _scope(self):
        return self.place

    @_scope.setter
    def _scope(self, Presence scope not None):
        self.place = scope
        dl_store_word(&self.owner, scope.owner)

    def __next__(self):
        cdef object batch
        cdef bint is_loaded = False
        cdef uintptr_t thread = PyThread_get_thread_ident()
        if dl_load_word(&self.owner) == thread and dl_take(&self.is_taken):
            try:
                if dl_load_word(&self.owner) != thread:
                    raise ConcurrentNextError
                if self.is_open():
                    batch = self.go_short(&is_loaded)
            finally:
                dl_store_int(&self.is_taken, 0)
            if is_loaded:
                return batch
        return self._go_long()

    cdef bint is_open(self) except -1:
        """Whether nothing stands in the way of the thread that has taken it."""
        return (
            self.place.state == IDLE
            and dl_load_int(&self._slot.mark) == _forks
            and self._slot.task is None
            and dl_scope == <PyObject *>self.place
            and (self._probe is None or not self._probe())
        )

    cdef object go_short(self, bint *is_loaded):
        """Return a batch, or say that the long way has to be taken after all."""
        cdef Presence place = self.place
        cdef object batch
        cdef PyObject *task = NULL
        cdef PyObject *args[4]
        try:
            # Not yet active: the sampler is no part of a batch.
            place.state = ASKING
            task = PyIter_Next(self._tasks)
            if task == NULL:
                return None
            self._slot.put(<object>task)
            place.state = ACTIVE
            args[0] = <PyObject *>self._source
            args[1] = <PyObject *>self._collate_fn
            args[2] = task
            args[3] = <PyObject *>place
            batch = PyObject_Vectorcall(self._fetch, args, 4, NULL)
            if batch is _end:
                self._stop()
            self.since += 1
            if self.since == LOOK_EVERY:
                self.look()
            self._slot.put(None)
            is_loaded[0] = True
            return batch
        except Exception as error:
            if task != NULL:
                self._account(error)
            raise
        except NotInWorker:
            return None  # the long way hands it to a worker
        finally:
            place.state = IDLE
            Py_XDECREF(task)

    cdef int look(self) except -1:
        """Close the short way if the last batches took long, with what came between."""
        cdef double now = _clock()
        if now - self.looked_at > SLOW_S:
            self._tasks = iter(())
        self.looked_at = now
        self.since = 0
        return 0

    def _arrive(self):
        """Make this thread the one to which the short way is open."""
        cdef Presence place = self.place
        cdef Presence own
        cdef uintptr_t thread = PyThread_get_thread_ident()
        cdef uintptr_t before = self.owner
        if before == thread:
            # Taken by this very thread, further up.
            if place.state != IDLE or self.is_taken:
                raise ConcurrentNextError
            return
        own = place.copy()
        dl_store_word(&self.owner, thread)
        if dl_load_int(&self.is_taken):
            # It stays the other thread's.
            dl_store_word(&self.owner, before)
            raise ConcurrentNextError
        # Only now, since that thread may have come round in between.
        own.task = place.task
        self.place = own
        tally = self._tally
        if tally.row is not None:
            tally.row = (tally.row[0], own, tally.row[2])

    def _go_long(self):
        """Return the next batch by the long way."""
        raise NotImplementedError  # an abstract method

    def _stop(self):
        """Raise StopIteration, now and whenever asked again."""
        raise StopIteration

    def _account(self, error):
        """Let a failed batch go."""
        raise NotImplementedError  # an abstract method

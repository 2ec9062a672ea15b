"""Who runs fetch and collate: a module for each kind of worker, see `base`.

base.py      the plan of an epoch, the Protocol of a backend, what iterators share
feed.py      index batches, made lazily by the consumer, none lost to an interrupt
direct.py    batches that the calling thread loads itself
helping.py   the consumer loads beside workers while it would only wait
policy.py    what batches cost, and so who loads them
inline.py    num_workers=0: nothing else
reorder.py   results in order, or as they come
epoch.py     what consumer and workers share of one epoch
seat.py      what one worker owns during an epoch: dataset, generators, fetch
threads.py   the iterator over batches that worker threads load
pool.py      the threads themselves, made once for each loader
worker.py    what one of them does: look for an epoch, serve it, sleep
starting.py  threads, started where Ctrl-C cannot strike
lanes.py     items_in_parallel: the samples of one batch at once
memory.py    freed memory that glibc keeps for the next batch
sleeper.py   sleeping and being woken
watchdog.py  what is said of a worker that stalls or died
"""

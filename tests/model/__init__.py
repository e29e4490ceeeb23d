"""A model checker of the journal's protocol: every interleaving, over the real `admit`, `evolve` and `settle`.

What may happen, and is explored in every order:

* Two writers. Each takes a fence from the store, announces it on the newest head that it has read, and appends: up to
  two records in flight, each the parent of the next. It may lag behind the log by any distance, read in batches of any
  size, take over at any time (a lease runs out whenever it likes; there is no clock), also while something of its own
  is in doubt, announce the same fence again after it was told that the first announcement is void, and give its lease
  back.
* A log in which an append arrives late, never, twice, and out of order. It keeps one total order and loses nothing that
  arrived: that order is all that the protocol relies on.
* A lease store that forgets everything it granted, once, and then counts from one again. What it says of contention is
  believed by nobody: it is not modelled, every request is granted.
* Careless writers, of two kinds. A *stubborn* one has read that its lease is over, or gave it back, and appends all the
  same, on the newest head; it also writes on under a lease while it announces the next. A *floorless* one asks for a
  fence without giving the store the highest one of the log, and announces whatever it got, even where admission will
  refuse it. What a careful writer may do, they may too.

Writers behave as `journal.spine` makes them: the parent is the newest event that is expected to count,
`Pending.rooted` says whether that is a head that was read, a batch is folded before `settle` is asked, and what follows
an event that was admitted becomes rooted. The spine sometimes waits longer before it settles; that is a longer batch.

What must hold (`world` and `protocol` check it without asking admission):

* no event counts twice; the fences of leases that count strictly grow; what counts under a lease carries that lease's
  fence and id, so no older fence counts after a newer one; a sequence is dense;
* a writer that was told "admitted", with a sequence, finds its event in the log under that sequence; one that was told
  "void" never does, whatever still arrives.

Not modelled: authentication, records that repeat an earlier one, records that are void by rules of their own. Processes
that die need no step of their own: every state is also one after which a writer never moves again.

`world` interns events, states and verdicts as small integers, so that each decision of the real functions, which are
pure, is made once; `protocol` says what may happen next; `search` goes through it breadth first, so that the first
contradiction found is a shortest one; `variants` leaves rules out of admission. `python -m tests.model` runs the deeper
bound.

The modules `executor_*` explore the protocol of the executor on a target in the same way, over the real `weigh`, decision
tables and admission; `executor_bounds` says what may happen there and what must hold.
"""

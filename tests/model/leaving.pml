/* Workers that leave, as a model for spin: all interleavings of a small cluster.

   The members hold capabilities at a source and send each other records for a place behind it, which may be sent on
   once; times 0 and 1. One worker leaves after the other, while the rest goes on. What a worker has done it tells in
   batches of progress; records travel on lanes of their own.

   What is asserted, and the name of the assertion
     batch_is_the_next        everybody folds batches 0, 1, 2 ... of each sender, each once
     source_frontier_is_true  nobody's counts let a time pass at the source while somebody holds a capability for it
     record_frontier_is_true  nor behind the source, while moreover a record for that time is on its way
     nobody_sends_to_the_gone no record, and no word, is on its way to a worker that has gone
     all_is_heard             whoever forgets a worker has folded every batch and received every record of it
     counts_are_the_truth     when all has come to rest, everybody's counts are what is outstanding
     nothing_is_left          and that is nothing: no capability, no record
   and by spin itself: nothing waits for ever (no invalid end state), no lane overflows.

   Step here                          In megaflow's code; that these names exist is tested
     tell, fold                         Progcaster._broadcast, Progcaster.receive
     retire                             Member._retire; message Retire, message Retiring
     begin_leave                        Member._begin_leave; message NoMoreRecords
     MAY_GO, go                         Leaver.turn, Leaver._holds_nothing; message LaneEnd
     read_end, DEPARTED                 Member.hear_lane; message Departed
     commit, finish                     LeaveChange.drain; Member._commit, Member._finish

   What keeps it small and loses nothing
     - A lane is a FIFO channel. Mail and state have lanes as records do: one stands for the three.
     - Mail from and to the coordinator is a fact that everybody can see, and acts on at any later moment, in order.
       The coordinator, a role of worker 0, does not leave: it hands over first (see handover.pml).
     - A worker tells at once what it has done: a batch that nobody has read yet is as good as untold. Only one that is
       to leave tells it at any later moment, though before the next thing that it does.
     - Worker 1 waits, as a notification does, with the capability for time 1 until time 0 has passed in its view.
     - Everybody lets go of its capability in the end, so that "for ever" means something.
   Not here: objections and aborts, before the commit, when nothing has changed; joins (see bootstrap.pml), of which
   none is under way during a leave; several workers of a process, which leave as one by the same steps.

   Planted faults, which the check must find: NO_DRAIN, FENCE_BESIDE, GOES_HOLDING, END_BEFORE_TOLD, ONE_LANE,
   DEAF_AT_COMMIT, SILENT_AT_COMMIT, SENDS_ON; test_leaving_model.py says what each does. */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#ifndef RECORDS
#define RECORDS 1
#endif
#ifndef HOLDER
#define HOLDER 1                /* the worker that begins with a capability */
#endif
#ifndef OTHER
#define OTHER HOLDER            /* another one that does */
#endif

#define TIMES 2
#define GONE TIMES              /* as a time: no capability */
#define BATCHES (2 + 2 * RECORDS)       /* of one sender, at most */
#define EVERYBODY ((1 << WORKERS) - 1)
#define NOBODY 255
#define NOTHING 255             /* nothing to tell */

#define only(w) (1 << (w))
#define PROGRESS(from, to) progress[(from) * WORKERS + (to)]
#define DATA(from, to) data[(from) * WORKERS + (to)]

/* What a batch says, as one number. */
#define DOWNGRADE(before, after) ((before) * 8 + (after))
#define PRODUCE(time) (40 + (time))
#define CONSUME(time) (48 + (time))

mtype = { BATCH, RECORD, FRESH, NO_MORE, END };
chan progress[WORKERS * WORKERS] = [BATCHES + 1] of { mtype, byte };    /* what, number of a batch */
chan data[WORKERS * WORKERS] = [2 * RECORDS + 2] of { mtype, byte };    /* what, time of a record */

typedef Worker {
    byte following[WORKERS];    /* sender -> number of its next batch to fold; for itself of its next */
    short caps[TIMES];          /* its tracker: time -> capabilities at the source */
    short records[TIMES];       /* its tracker: time -> records behind it */
    byte held;                  /* time of the capability that it holds */
    byte inbox[TIMES];          /* time -> records that it has received; FRESH ones may be sent on */
    byte fresh[TIMES];
    byte untold;                /* what it has done and not told; NOTHING */
    byte members;               /* set of workers: to whom it sends records */
    byte audience;              /* set of workers: whom it tells its progress */
    byte knows;                 /* set of workers: whose progress it folds */
    byte heard;                 /* commits and ends of changes, in order */
    byte open;                  /* set of senders that may still send it records, while it leaves */
    byte ends;                  /* lanes of the leaving worker whose end it has read */
    bool retires;               /* it works off what it holds, and leaves */
    bool draining               /* and applied the commit */
};
Worker worker[WORKERS];

typedef Stream { byte batch[BATCHES] };
Stream stream[WORKERS];         /* sender -> what its batches say, by number */

/* The truth, which nobody sees. */
short true_caps[TIMES];
short true_records[TIMES];
byte gone;                      /* set of workers */
byte under_way;                 /* messages in lanes, batches not told, records not consumed */
bool over;

/* The changes, and what mail says of them. */
byte membership = EVERYBODY;
byte events;                    /* commits and ends of changes so far */
byte asked = NOBODY;            /* to retire */
byte leavers[LEAVES];           /* change -> who leaves */
byte after[LEAVES];             /* change -> set of workers: the members then */
byte fences;                    /* set of workers that have said, beside their records, that there will be no more */

byte records = RECORDS;

hidden byte i, k, n, what, bound;       /* scratch within a step */
hidden byte batch_is_the_next, source_frontier_is_true, record_frontier_is_true, nobody_sends_to_the_gone;
hidden byte all_is_heard, counts_are_the_truth, nothing_is_left;

#define IS_GONE(w) (gone & only(w))
#define CHANGE(w) (worker[w].heard / 2)         /* under way, as this worker knows it */
#define HAS_COMMITTED(w) (worker[w].heard % 2 == 1)
#define IDLE(w) (worker[w].untold == NOTHING)
#define HAS_RECORDS(w) (worker[w].inbox[0] + worker[w].inbox[1] > 0)
#ifdef SENDS_ON
#define MAY_SEND(w, to) (worker[w].knows & only(to))
#else
#define MAY_SEND(w, to) (worker[w].members & only(to))
#endif

#ifdef NO_DRAIN
#define DRAINED(w) true
#elif defined(FENCE_BESIDE)
#define DRAINED(w) ((fences | only(w)) == worker[w].audience)
#else
#define DRAINED(w) (worker[w].open == 0)
#endif
#ifdef GOES_HOLDING
#define HOLDS_NOTHING(w) (!HAS_RECORDS(w) && IDLE(w))
#elif defined(END_BEFORE_TOLD)
#define HOLDS_NOTHING(w) (!HAS_RECORDS(w) && worker[w].held == GONE)
#else
#define HOLDS_NOTHING(w) (!HAS_RECORDS(w) && worker[w].held == GONE && IDLE(w))
#endif
#define MAY_GO(w) (worker[w].draining && DRAINED(w) && HOLDS_NOTHING(w))

#ifdef ONE_LANE
#define ENDS 1
#else
#define ENDS 2
#endif
#define DEPARTED(w) (IS_GONE(w) || worker[w].heard == events && worker[w].ends >= ENDS)
#define MAY_LET_GO(w) (w != 1 || worker[w].held == 0 || worker[w].caps[0] <= 0 && worker[w].records[0] <= 0)
#define HAS_HEARD(w) (IS_GONE(w) || worker[w].heard == events)
#define HAS_LET_GO(w) (IS_GONE(w) || worker[w].held == GONE)
#if WORKERS > 3
#define ALL(that) (that(0) && that(1) && that(2) && that(3))
#else
#define ALL(that) (that(0) && that(1) && that(2))
#endif

/* Progress ---------------------------------------------------------------------------- */

inline apply(at, said) {
    if
    :: said < PRODUCE(0) ->
        worker[at].caps[said / 8]--;
        if
        :: said % 8 < TIMES -> worker[at].caps[said % 8]++
        :: else
        fi
    :: said >= PRODUCE(0) && said < CONSUME(0) -> worker[at].records[said - PRODUCE(0)]++
    :: said >= CONSUME(0) -> worker[at].records[said - CONSUME(0)]--
    fi
}

inline check_frontiers(at) {
    i = 0;
    bound = 0;                  /* 1: something up to time i holds back records, 2: and capabilities too */
    do
    :: i < TIMES ->
        if
        :: worker[at].caps[i] > 0 -> bound = 2
        :: worker[at].caps[i] <= 0 && worker[at].records[i] > 0 && bound == 0 -> bound = 1
        :: else
        fi;
        source_frontier_is_true = (true_caps[i] == 0 || bound == 2);
        assert(source_frontier_is_true);
        record_frontier_is_true = (true_records[i] == 0 || bound > 0);
        assert(record_frontier_is_true);
        i++
    :: else -> break
    od;
    skip
}

inline fold(at, sender, number) {
    printf("worker %d folds batch %d of worker %d\n", at, number, sender);
    batch_is_the_next = (number == worker[at].following[sender]);
    assert(batch_is_the_next);
    worker[at].following[sender] = number + 1;
    apply(at, stream[sender].batch[number]);
    check_frontiers(at)
}

/* The sender folds its own batch at once. */
inline tell(sender) {
    n = worker[sender].following[sender];
    printf("worker %d tells batch %d\n", sender, n);
    stream[sender].batch[n] = worker[sender].untold;
    worker[sender].untold = NOTHING;
    under_way--;
    k = 0;
    do
    :: k < WORKERS ->
        if
        :: k != sender && (worker[sender].audience & only(k)) && !IS_GONE(k) ->
            PROGRESS(sender, k) ! BATCH(n);
            under_way++
        :: else
        fi;
        k++
    :: else -> break
    od;
    fold(sender, sender, n)
}

inline note(w, said) {
    worker[w].untold = said;
    under_way++;
    if
    :: !worker[w].retires -> tell(w)
    :: else
    fi
}

/* Records ----------------------------------------------------------------------------- */

inline send(from, to, kind, time) {
    printf("worker %d sends worker %d a record at time %d\n", from, to, time);
    nobody_sends_to_the_gone = !IS_GONE(to);
    assert(nobody_sends_to_the_gone);
    if
    :: from == to ->
        worker[to].inbox[time]++;
        if
        :: kind == FRESH -> worker[to].fresh[time]++
        :: else
        fi
    :: else -> DATA(from, to) ! kind(time)
    fi
}

inline take(at, sender) {
    if
    :: DATA(sender, at) ? [FRESH] ->
        DATA(sender, at) ? FRESH(n);
        worker[at].inbox[n]++;
        worker[at].fresh[n]++
    :: DATA(sender, at) ? [RECORD] ->
        DATA(sender, at) ? RECORD(n);
        worker[at].inbox[n]++
    :: DATA(sender, at) ? [NO_MORE] ->
        DATA(sender, at) ? NO_MORE(n);
        under_way--;
        worker[at].open = worker[at].open & ~only(sender)
    :: DATA(sender, at) ? [END] ->
        DATA(sender, at) ? END(n);
        read_end(at, sender)
    fi
}

/* Leaving ----------------------------------------------------------------------------- */

inline read_end(at, sender) {
    printf("worker %d reads an end of worker %d\n", at, sender);
    under_way--;
    worker[at].ends++
}

inline begin_leave(w) {
    printf("worker %d applies the commit\n", w);
    k = leavers[CHANGE(w)];
    worker[w].members = after[CHANGE(w)];
    worker[w].heard++;
    fences = fences | only(w);
    if
    :: w == k -> worker[w].draining = true
    :: else ->
#ifdef DEAF_AT_COMMIT
        worker[w].knows = worker[w].members;
#endif
#ifdef SILENT_AT_COMMIT
        worker[w].audience = worker[w].members;
#endif
        nobody_sends_to_the_gone = !IS_GONE(k);
        assert(nobody_sends_to_the_gone);
        DATA(w, k) ! NO_MORE(0);
        under_way++
    fi
}

inline go(w) {
    printf("worker %d goes\n", w);
    gone = gone | only(w);
    under_way = under_way - (IDLE(w) -> 0 : 1);
    k = 0;
    do
    :: k < WORKERS ->
        nobody_sends_to_the_gone = (!(DATA(k, w) ?? [FRESH] || DATA(k, w) ?? [RECORD]));
        assert(nobody_sends_to_the_gone);
        under_way = under_way - len(PROGRESS(k, w)) - len(DATA(k, w));
        if
        :: k != w && (worker[w].audience & only(k)) ->
            PROGRESS(w, k) ! END(0);
            DATA(w, k) ! END(0);
            under_way = under_way + 2
        :: else
        fi;
        k++
    :: else -> break
    od;
    skip
}

inline finish(w) {
    k = leavers[CHANGE(w)];
    printf("worker %d forgets worker %d\n", w, k);
    all_is_heard = (worker[w].following[k] == worker[k].following[k] &&
                    !(DATA(k, w) ?? [FRESH] || DATA(k, w) ?? [RECORD]));
    assert(all_is_heard);
    worker[w].heard++;
    worker[w].audience = worker[w].members;
    worker[w].knows = worker[w].members;
    worker[w].ends = 0
}

/* What can arrive at worker w from one sender. */
#define RECEIVE(s) \
    :: d_step { PROGRESS(s, w) ? [BATCH] -> \
        PROGRESS(s, w) ? BATCH(n); \
        under_way--; \
        if \
        :: worker[w].knows & only(s) -> fold(w, s, n) \
        :: else -> printf("worker %d drops batch %d of worker %d\n", w, n, s) \
        fi } \
    :: d_step { PROGRESS(s, w) ? [END] -> PROGRESS(s, w) ? END(n); read_end(w, s) } \
    :: d_step { nempty(DATA(s, w)) -> take(w, s) }

/* A record to a member, of one's own or one that has come. */
#define SEND(s) \
    :: d_step { records > 0 && IDLE(w) && worker[w].held < TIMES && MAY_SEND(w, s) -> \
        records--; \
        n = worker[w].held; \
        true_records[n]++; \
        under_way++; \
        send(w, s, FRESH, n); \
        what = PRODUCE(n); \
        note(w, what) } \
    :: d_step { IDLE(w) && worker[w].fresh[0] + worker[w].fresh[1] > 0 && MAY_SEND(w, s) && w != s -> \
        n = (worker[w].fresh[0] > 0 -> 0 : 1); \
        worker[w].fresh[n]--; \
        worker[w].inbox[n]--; \
        send(w, s, RECORD, n) }

proctype run_worker(byte w) provided (!(gone & only(_pid - 2))) {
end:                            /* for the gone; the coordinator's wait for the others shows that one waits for ever */
    do
    :: over -> break

    RECEIVE(0)
    RECEIVE(1)
    RECEIVE(2)
#if WORKERS > 3
    RECEIVE(3)
#endif

    SEND(0)
    SEND(1)
    SEND(2)
#if WORKERS > 3
    SEND(3)
#endif

    /* Downgrade or release. */
    :: d_step { IDLE(w) && worker[w].held == 0 ->
        printf("worker %d goes from time 0 to 1\n", w);
        true_caps[0]--;
        true_caps[1]++;
        worker[w].held = 1;
        note(w, DOWNGRADE(0, 1)) }
    :: d_step { IDLE(w) && worker[w].held < TIMES && MAY_LET_GO(w) ->
        printf("worker %d lets go of time %d\n", w, worker[w].held);
        true_caps[worker[w].held]--;
        what = DOWNGRADE(worker[w].held, GONE);
        worker[w].held = GONE;
        note(w, what) }

    /* Consume a record. */
    :: d_step { IDLE(w) && HAS_RECORDS(w) ->
        n = (worker[w].inbox[0] > 0 -> 0 : 1);
        printf("worker %d consumes a record at time %d\n", w, n);
        worker[w].inbox[n]--;
        if
        :: worker[w].fresh[n] > worker[w].inbox[n] -> worker[w].fresh[n]--
        :: else
        fi;
        true_records[n]--;
        under_way--;
        what = CONSUME(n);
        note(w, what) }

    :: d_step { !IDLE(w) -> tell(w) }

    /* Leaving. */
    :: d_step { asked == w && !worker[w].retires && worker[w].heard == events ->
        printf("worker %d retires\n", w);
        worker[w].retires = true;
        worker[w].open = worker[w].audience & ~only(w) }
    :: d_step { worker[w].heard < events && !HAS_COMMITTED(w) -> begin_leave(w) }
    :: d_step { worker[w].heard < events && HAS_COMMITTED(w) -> finish(w) }
    :: d_step { MAY_GO(w) -> go(w) }
    od
}

proctype coordinator() {
    byte change = 0;
    do
    :: change < LEAVES ->
        atomic {
            if
            :: membership & only(1) -> asked = 1
            :: membership & only(2) -> asked = 2
#if WORKERS > 3
            :: membership & only(3) -> asked = 3
#endif
            fi
        }
        d_step { worker[asked].retires ->       /* the commit */
            membership = membership & ~only(asked);
            leavers[change] = asked;
            after[change] = membership;
            asked = NOBODY;
            fences = 0;
            events++ }
        d_step { ALL(DEPARTED) ->               /* the end of the change */
            events++;
            change++ }
    :: else -> break
    od;
    atomic { under_way == 0 && ALL(HAS_LET_GO) && ALL(HAS_HEARD) -> over = true }
    d_step {
        i = 0;
        do
        :: i < WORKERS ->
            k = 0;
            do
            :: k < TIMES ->
                nothing_is_left = (true_caps[k] == 0 && true_records[k] == 0);
                assert(nothing_is_left);
                counts_are_the_truth = (IS_GONE(i) || worker[i].caps[k] == 0 && worker[i].records[k] == 0);
                assert(counts_are_the_truth);
                k++
            :: else -> break
            od;
            i++
        :: else -> break
        od;
        skip
    }
}

init {
    d_step {
        true_caps[0] = (HOLDER == OTHER -> 1 : 2);
        i = 0;
        do
        :: i < WORKERS ->
            worker[i].held = (i == HOLDER || i == OTHER -> 0 : GONE);
            worker[i].caps[0] = true_caps[0];
            worker[i].untold = NOTHING;
            worker[i].members = EVERYBODY;
            worker[i].audience = EVERYBODY;
            worker[i].knows = EVERYBODY;
            i++
        :: else -> break
        od;
        skip
    }
    atomic {
        run coordinator();
        run run_worker(0);
        run run_worker(1);
        run run_worker(2)
#if WORKERS > 3
        ;
        run run_worker(3)
#endif
    }
}

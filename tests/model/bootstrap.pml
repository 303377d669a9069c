/* The bootstrap of joining workers, as a model for spin: all interleavings of a small cluster.

   Three members, of which worker 0 begins with a capability and the others only count, and two workers that join one
   after the other, each through any member, the second perhaps through the first. One dataflow: a source, whose
   capabilities are counted, and behind it a place where records are counted until they are consumed; times 0 and 1.
   What the workers do beside the protocol is bounded: OPERATIONS downgrades and releases by whoever holds a
   capability, RECORDS records to whichever member. Of five workers one is always a third party to any exchange.

   What is asserted, and the name of the assertion
     batch_is_the_next        everybody folds batches 0, 1, 2 ... of each sender, each once; a snapshot is a prefix
     source_frontier_is_true  nobody's counts let a time pass at the source while somebody holds a capability for it
     record_frontier_is_true  nor behind the source, while moreover a record for that time is on its way
     counts_are_the_truth     when all has come to rest, everybody's counts are what is outstanding
   and by spin itself: nothing waits for ever (no invalid end state), no lane overflows.

   Step here                          In megaflow's code; that these names exist is tested
     broadcast, fold                    Progcaster._broadcast, Progcaster.receive
     Prepare: marker                    Member._prepare; message Marker
     Prepare: snapshot                  Server._cut; beside the marker there, at any moment here
     `stream`: batches kept by number   Server.record
     read_marker: range asked           Intake.take_marker, Intake.take_snapshot, Intake._gaps
     fold_range                         Server._answer, Intake.take_range
     take_batch: dropped by number      Intake.take_batch, DataflowProgress.take; Progcaster.receive even when it has joined
     READY, Commit                      Sequencer._commit_join; Member._commit
     CAN_FOLD: unknown workers wait     Member.takes
     Mint                               JoinChange.mint; function mint; Progcaster.mint
     GATE                               Joiner._announce_gates; message CapabilityGate; Gates.hear
     MAY_PASS                           Progcaster.gate, Progcaster._open_gates
     MAY_ACT                            Joiner.turn
     SETTLED                            Gates.are_passed, Member._settle; message Settled

   What keeps it small and loses nothing
     - A lane is a FIFO channel. What waits at its receiver (for a snapshot, a range, a commit, a gate) stays in it.
     - Mail from and to the coordinator is a fact that everybody can see, and acts on at any later moment, in the order
       of the protocol: a message with any delay. So the coordinator itself need not hesitate (`provided`).
     - The snapshot arrives when it is cut, for until then the joiner only keeps what comes; and it reads a marker as
       soon as it has both, for later it would read the same.
     - "I hold none" stays true until the end of the change, so only the last such answer is a step.
     - A joiner knows of commit and grants as soon as they are given; what it does then it does at any later moment.
       Its gate is the first message on each of its lanes, and read together with the batch behind it.
   Not here: aborts, leaves (see leaving.pml), several dataflows, sources or workers of a process; batches held back
   (see progcaster.py).

   Planted faults, which the check must find: NO_DEDUP, NO_RANGE, NO_GATE, NO_SETTLING, NO_WAIT_FOR_GRANT,
   DROP_UNKNOWN, MINT_AT_VIEW; test_bootstrap_model.py says what each leaves out. */

#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef RECORDS
#define RECORDS 0
#endif
#ifndef JOINERS
#define JOINERS 2
#endif
#ifndef HOLDERS
#define HOLDERS 1                                   /* members that begin with a capability */
#endif

#define FOUNDERS 3
#define WORKERS 5
#define TIMES 2
#define GONE TIMES                                  /* as a time: no capability */
#define BATCHES (OPERATIONS + RECORDS * 2 + 2)      /* of one sender, at most */
#define LANE_MAX (OPERATIONS + RECORDS * 2 + 3)     /* messages: marker or gate, and all batches */
#define NOBODY 255
#define NOTHING 255                                 /* in a gate: no batch to wait for */

#define only(w) (1 << (w))
#define LANE(from, to) lane[(from) * WORKERS + (to)]

/* What a batch says, as one number. */
#define DOWNGRADE(before, after) ((before) * 8 + (after))
#define MINT(time) (32 + (time))
#define PRODUCE(time) (40 + (time))
#define CONSUME(time) (48 + (time))

mtype = { MARKER, GATE, BATCH };
chan lane[WORKERS * WORKERS] = [LANE_MAX] of { mtype, byte };   /* what, number of a batch */

typedef Worker {
    byte following[WORKERS];    /* sender -> number of its next batch to fold; for itself of its next */
    short caps[TIMES];          /* its tracker: time -> capabilities at the source */
    short records[TIMES];       /* its tracker: time -> records behind it */
    byte held;                  /* time of the capability that it holds in truth */
    byte inbox[TIMES];          /* time -> records on their way to it */
    byte audience;              /* set of workers that it tells its progress */
    byte members;               /* set of workers: the membership as it knows it; empty before it is a member */
    byte complete               /* set of senders of whom a joiner misses nothing before the next batch on their lane */
};
Worker worker[WORKERS];

typedef Stream { byte batch[BATCHES] };
Stream stream[WORKERS];         /* sender -> what its batches say, by number */

/* The truth, which nobody sees. */
short true_caps[TIMES];
short true_records[TIMES];
byte under_way;                 /* messages in lanes, and records not consumed */
bool over;

/* The change, and what mail says of it. */
byte membership;                /* set of workers: the last one committed */
byte joiner = NOBODY;
byte server = NOBODY;
bool snapped;                   /* the server has cut its snapshot */
byte range_end[WORKERS];        /* sender -> end of the range that the joiner has asked for; 0: none */
bool granted;                   /* the members have been asked for a capability */
byte minter[WORKERS];           /* joiner -> who minted its capability */
byte minting[WORKERS];          /* joiner -> number of the batch that did */

byte operations = OPERATIONS;
byte records = RECORDS;

hidden byte i, k, n, what, bound;   /* scratch within a step */
hidden byte batch_is_the_next, source_frontier_is_true, record_frontier_is_true, counts_are_the_truth;

#define IS_MEMBER(w) (worker[w].members & only(w))
#define KNOWS(w, other) (worker[w].members & only(other))
#define NOBODY_HOLDS (true_caps[0] + true_caps[1] == 0)
#define HAS_FOLDED_MINTING(w, whose) \
    (minter[whose] == NOBODY || worker[w].following[minter[whose]] > minting[whose])

#ifdef NO_WAIT_FOR_GRANT
#define MAY_ACT(w) IS_MEMBER(w)
#else
#define MAY_ACT(w) (IS_MEMBER(w) && HAS_FOLDED_MINTING(w, w))
#endif
#define HOLDS(w) (worker[w].held < TIMES && MAY_ACT(w))

#ifdef NO_GATE
#define MAY_PASS(w, sender) true
#else
#define MAY_PASS(w, sender) HAS_FOLDED_MINTING(w, sender)
#endif

/* A member folds what members send it; a joiner folds batches behind which nothing is missing. */
#define CAN_FOLD(w, sender) (IS_MEMBER(w) -> KNOWS(w, sender) : worker[w].complete & only(sender))

#ifdef MINT_AT_VIEW
#define CAN_ANSWER(w) (w == server)
#else
#define CAN_ANSWER(w) (HOLDS(w) || NOBODY_HOLDS)
#endif

#define READY (joiner != NOBODY && worker[joiner].complete == membership)
#define HAS_SETTLED(w) (!(membership & only(w)) || KNOWS(w, joiner) && HAS_FOLDED_MINTING(w, joiner))
#ifdef NO_SETTLING
#define SETTLED granted
#else
#define SETTLED (granted && HAS_SETTLED(0) && HAS_SETTLED(1) && HAS_SETTLED(2) && HAS_SETTLED(3) && HAS_SETTLED(4))
#endif

/* Progress ---------------------------------------------------------------------------- */

inline apply(at, said) {
    if
    :: said < MINT(0) ->
        worker[at].caps[said / 8]--;
        if
        :: said % 8 < TIMES -> worker[at].caps[said % 8]++
        :: else
        fi
    :: said >= MINT(0) && said < PRODUCE(0) -> worker[at].caps[said - MINT(0)]++
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

inline check_members() {
    n = 0;
    do
    :: n < WORKERS ->
        if
        :: IS_MEMBER(n) -> check_frontiers(n)
        :: else
        fi;
        n++
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

/* The sender folds its own batch at once. A joiner's first batch has the gate in front. */
inline broadcast(sender, said) {
    n = worker[sender].following[sender];
    stream[sender].batch[n] = said;
    k = 0;
    do
    :: k < WORKERS ->
        if
        :: worker[sender].audience & only(k) ->
            if
            :: sender >= FOUNDERS && n == 0 ->
                LANE(sender, k) ! GATE((minter[sender] == NOBODY -> NOTHING : minting[sender]));
                under_way++
            :: else
            fi;
            LANE(sender, k) ! BATCH(n);
            under_way++
        :: else
        fi;
        k++
    :: else -> break
    od;
    fold(sender, sender, n)
}

inline take_batch(at, sender) {
    LANE(sender, at) ? BATCH(n);
    under_way--;
    if
#ifndef NO_DEDUP
    :: at >= FOUNDERS && n < worker[at].following[sender] -> skip      /* the snapshot holds it */
#endif
    :: else -> fold(at, sender, n)
    fi
}

/* Bootstrap --------------------------------------------------------------------------- */

inline read_marker(sender) {
    LANE(sender, joiner) ? MARKER(n);
    under_way--;
    if
#ifndef NO_RANGE
    :: n > worker[joiner].following[sender] -> range_end[sender] = n
#endif
    :: else -> worker[joiner].complete = worker[joiner].complete | only(sender)
    fi
}

inline fold_range(sender) {
    n = worker[joiner].following[sender];
    do
    :: n < range_end[sender] -> fold(joiner, sender, n); n++
    :: else -> break
    od;
    range_end[sender] = 0;
    worker[joiner].complete = worker[joiner].complete | only(sender)
}

inline cut_snapshot(by) {
    printf("worker %d cuts a snapshot for worker %d\n", by, joiner);
    snapped = true;
    k = 0;
    do
    :: k < WORKERS -> worker[joiner].following[k] = worker[by].following[k]; k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < TIMES ->
        worker[joiner].caps[k] = worker[by].caps[k];
        worker[joiner].records[k] = worker[by].records[k];
        k++
    :: else -> break
    od;
    check_frontiers(joiner);
    k = 0;
    do
    :: k < WORKERS ->
        if
        :: LANE(k, joiner) ? [MARKER] -> read_marker(k)
        :: else
        fi;
        k++
    :: else -> break
    od;
    skip
}

/* The least time of a capability to mint beside: one's own, or with the fault the least that one believes to exist. */
inline least(by) {
#ifdef MINT_AT_VIEW
    n = 0;
    do
    :: n < TIMES && worker[by].caps[n] <= 0 -> n++
    :: else -> break
    od
#else
    n = worker[by].held
#endif
}

inline mint(by) {
    least(by);
    if
    :: n < TIMES ->
        printf("worker %d mints for worker %d at time %d\n", by, joiner, n);
        minter[joiner] = by;
        minting[joiner] = worker[by].following[by];
        worker[joiner].held = n;
        true_caps[n]++;
        what = MINT(n);
        broadcast(by, what);
        check_members()
    :: else                     /* nobody holds one: the source is closed for the joiner */
    fi;
    granted = true;
    worker[joiner].members = membership;
    worker[joiner].audience = membership & ~only(joiner)
}

/* What can arrive at worker w from one sender. */
#define RECEIVE(s) \
    :: d_step { CAN_FOLD(w, s) && LANE(s, w) ? [BATCH] -> take_batch(w, s) } \
    :: d_step { CAN_FOLD(w, s) && LANE(s, w) ? [GATE] && MAY_PASS(w, s) -> \
        LANE(s, w) ? GATE(n); under_way--; take_batch(w, s) } \
    :: d_step { w == joiner && range_end[s] > 0 && worker[server].following[s] >= range_end[s] -> fold_range(s) }

proctype run_worker(byte w) provided (!READY && !SETTLED) {
    byte choice;
    do
    :: over -> break

    RECEIVE(0)
    RECEIVE(1)
    RECEIVE(2)
    RECEIVE(3)
    RECEIVE(4)

    /* Downgrade or release. */
    :: atomic { !over && operations > 0 && HOLDS(w) ->
        choice = worker[w].held + 1;
        do
        :: choice < TIMES -> choice++
        :: break
        od;
        d_step {
            n = worker[w].held;
            printf("worker %d goes from time %d to %d\n", w, n, choice);
            operations--;
            true_caps[n]--;
            if
            :: choice < TIMES -> true_caps[choice]++
            :: else
            fi;
            worker[w].held = choice;
            what = DOWNGRADE(n, choice);
            choice = 0;
            broadcast(w, what)
        } }

#if RECORDS > 0
    /* Send a record to a member. */
    :: atomic { !over && records > 0 && HOLDS(w) ->
        if
        :: KNOWS(w, 0) -> choice = 0
        :: KNOWS(w, 1) -> choice = 1
        :: KNOWS(w, 2) -> choice = 2
        :: KNOWS(w, 3) -> choice = 3
        :: KNOWS(w, 4) -> choice = 4
        fi;
        d_step {
            n = worker[w].held;
            printf("worker %d sends worker %d a record at time %d\n", w, choice, n);
            records--;
            true_records[n]++;
            under_way++;
            worker[choice].inbox[n]++;
            what = PRODUCE(n);
            choice = 0;
            broadcast(w, what)
        } }

    /* Consume it. */
    :: d_step { MAY_ACT(w) && worker[w].inbox[0] + worker[w].inbox[1] > 0 ->
        n = (worker[w].inbox[0] > 0 -> 0 : 1);
        printf("worker %d consumes a record at time %d\n", w, n);
        worker[w].inbox[n]--;
        under_way--;
        true_records[n]--;
        what = CONSUME(n);
        broadcast(w, what) }
#endif

    /* Prepare: marker. */
    :: d_step { joiner != NOBODY && IS_MEMBER(w) && !KNOWS(w, joiner) && worker[w].members == membership &&
                !(worker[w].audience & only(joiner)) ->
        printf("worker %d sends worker %d marker %d\n", w, joiner, worker[w].following[w]);
        LANE(w, joiner) ! MARKER(worker[w].following[w]);
        under_way++;
        worker[w].audience = worker[w].audience | only(joiner);
        if
        :: snapped -> read_marker(w)
        :: else
        fi }

    /* Prepare: snapshot. */
    :: d_step { w == server && !snapped && worker[w].members == membership -> cut_snapshot(w) }

    /* Commit. */
    :: d_step { IS_MEMBER(w) && worker[w].members != membership ->
        printf("worker %d applies the commit\n", w);
        worker[w].members = membership }

#ifdef DROP_UNKNOWN
    :: d_step { joiner != NOBODY && IS_MEMBER(w) && !KNOWS(w, joiner) && LANE(joiner, w) ? [GATE] ->
        LANE(joiner, w) ? GATE(n);
        LANE(joiner, w) ? BATCH(n);
        printf("worker %d drops batch %d of worker %d\n", w, n, joiner);
        under_way = under_way - 2 }
#endif

    /* Mint, or the last "I hold none". */
    :: d_step { joiner != NOBODY && w != joiner && KNOWS(w, joiner) && !granted && CAN_ANSWER(w) -> mint(w) }
    od
}

proctype coordinator() {
    byte next = FOUNDERS;
    do
    :: next < FOUNDERS + JOINERS ->
        atomic {
            if
            :: server = 0
            :: server = 1
            :: next > FOUNDERS -> server = FOUNDERS
            fi;
            joiner = next
        }
        atomic { READY -> membership = membership | only(joiner) }
        atomic { SETTLED ->
            d_step {
#ifndef NO_SETTLING
                minter[joiner] = NOBODY;        /* needed no more; forgotten to save states */
                minting[joiner] = 0;
#endif
                joiner = NOBODY;
                server = NOBODY;
                snapped = false;
                granted = false;
                next++
            } }
    :: else -> break
    od;
    atomic { under_way == 0 -> over = true }
    d_step {
        i = 0;
        do
        :: i < WORKERS ->
            k = 0;
            do
            :: k < TIMES ->
                counts_are_the_truth = (!(membership & only(i)) ||
                    worker[i].caps[k] == true_caps[k] && worker[i].records[k] == true_records[k]);
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
        membership = only(FOUNDERS) - 1;
        true_caps[0] = HOLDERS;
        i = 0;
        do
        :: i < WORKERS ->
            minter[i] = NOBODY;
            worker[i].held = (i < HOLDERS -> 0 : GONE);
            if
            :: i < FOUNDERS ->
                worker[i].members = membership;
                worker[i].audience = membership & ~only(i);
                worker[i].caps[0] = HOLDERS
            :: else
            fi;
            i++
        :: else -> break
        od;
        skip
    }
    atomic {
        run coordinator();
        run run_worker(0);
        run run_worker(1);
        run run_worker(2);
        run run_worker(3);
        run run_worker(4)
    }
}

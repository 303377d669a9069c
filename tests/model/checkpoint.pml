/* Checkpoints of a durable job, as a model for spin: all interleavings of two workers, coordinator, launcher and disk,
   with a crash at any moment, from which the job goes on, any number of times.

   Each worker reads a split of its own, and sends records to the worker that has the one bin. The bin moves, the disk
   fails, and checkpoints are taken, one at a time. A crash leaves what is on the disk: all files if processes were
   killed, those that were synced if the power failed. The next incarnation begins with what the newest commit has.

   What is asserted, and the name of the assertion
     state_is_what_was_read    what a commit's segments restore has each record that was read before it, and no other
     output_is_what_was_read   so has the output, cut back to the length that the commit names
     output_is_there           and it is that long
     acknowledged_is_kept      what is recovered is the newest checkpoint that was acknowledged, or the one after it
     epochs_go_on              nothing before the epoch of the commit comes after it
     the_mark_is_in_time       no output of a checkpoint's epoch is written before the launcher hears of it
     the_bin_is_here           a record is applied where the bin is
     nothing_is_doubled        no record is applied twice, and no line written twice
     nothing_is_lost           at the end of a run all records are in the state and in the output
   and by spin itself: nothing waits for ever (no invalid end state).

   Step here                          In megaflow's code; that these names exist is tested
     begin_checkpoint, MAY_BEGIN        Checkpoints.go_on, Checkpoints._begin; message CheckpointBegun
     see, say_position                  LineSource._obey; message PositionsAt
     read_command, REGISTERED           Journal.register
     before, take_cut, forget           BarrierActions.before, Journal._cut, Journal.committed
     IS_IDLE                            Core.keep
     apply, ship, install               StateMachine._apply_durably; Router._install; Core.install
     write_segment, fail_segment        CutPacker.take, CutPacker._put; message CutWritten, message CutFailed
     abandon                            Checkpoints._abandon, Checkpoints.left; message CheckpointAbandoned
     announce, write_output, measure    Checkpointing.take; EpochMerge.mark, EpochMerge.close; OutputQueue._sync
     CAN_COMMIT                         Checkpoints.learn; message CheckpointReady; CommitDraft.is_complete
     link_commit, base and chain        Store.commit; CommitDraft.commit
     acknowledge, fail_commit           StoreKeeper.work; Checkpoints.answered; message Committed
     resume                             class Recovery; function restore; class StoreKeeper

   What keeps it small and loses nothing
     - What progress tells is a fact that everybody sees, and acts on at any later moment: it stays true.
     - A message that takes effect where it is taken is not on its way: whoever sends it does so at that moment. Only
       that a checkpoint begins is, since no epoch after it may be closed before: it comes by the connection by which
       the coordinator's process closes epochs (HAS_BEEN_TOLD).
     - F routes a record as soon as it may: one that is under way holds back less. A worker with nothing to write says
       so as it cuts. Journals hear of a commit at once: later, they would only have more to write.
     - Commands are in epochs in a row, in any order: an empty epoch is as good as the one before it.
     - A state is the set of the records in it, each with a key of its own. So a delta is the set of keys that were
       touched, and what it has of them is known; a whole bin has all that were ever applied.
     - An incarnation begins with a commit: numbers and epochs begin anew, and with them all that may happen.
   Not here: timers, and keys that go; several bins and operators (each is cut alike); joins, and of leaves all but the
   split that is given back; hand-overs, stop and end, which wait for the checkpoint under way; what other launchers do
   to the store, and what is removed from it: see fencing.pml.

   Planted faults, which the check must find: SHIPS_UNCUT, INSTALLS_UNCUT, ARRIVED_IN_PART, SINCE_ABANDONED,
   OFF_BY_ONE, IDLE_IGNORES_STATE, IDLE_IGNORES_STASH, NO_BARRIER, POSITIONS_EARLY, BEGINS_BETWEEN, READY_EARLY,
   TOLD_EARLY, BEGUN_ASIDE, OUTPUT_UNSYNCED, ACKNOWLEDGES_EARLY, RESUMES_AT_T; test_checkpoint_model.py says what each
   does. */

#ifndef RECORDS
#define RECORDS 2               /* of both splits together */
#endif
#ifndef MOVES
#define MOVES 1
#endif
#ifndef HANDS
#define HANDS 0                 /* times that worker 1 gives its split away, to worker 0 */
#endif
#ifndef CHECKPOINTS
#define CHECKPOINTS 2           /* of all incarnations */
#endif
#ifndef FAILURES
#define FAILURES 1              /* of the disk */
#endif
#ifndef WHOLE
#define WHOLE 0                 /* the number of the checkpoint in which the bin is written whole in turn; 0: of none */
#endif

#define WORKERS 2
#define BOTH 3
#define NOBODY 2                /* has the bin: it is on its way */
#define ALL ((1 << RECORDS) - 1)
#define BEGINNING 1             /* the epoch of the commit that an incarnation goes on from */
#define LAST (BEGINNING + MOVES + CHECKPOINTS + 2 * HANDS + 2)
#define NONE 0

#define only(w) (1 << (w))
#define SPLIT(r) ((r) & 1)
#define TOUCHED(w, n) touched[(w) * (CHECKPOINTS + 2) + (n)]
#define CAME(w, n) came[(w) * (CHECKPOINTS + 2) + (n)]
#define AT(n, w) ((n) * WORKERS + (w))

mtype = { UNREAD, AT_F, AT_S, APPLIED };

/* Records, and the bin ------------------------------------------------------------------ */

mtype place[RECORDS];
byte stamp[RECORDS];
byte owner[RECORDS];            /* worker: whose F has it, and then whose bin it is for */
byte home;                      /* of the bin: a worker, or NOBODY */
byte state;                     /* of the bin: set of records */

/* The coordinator ----------------------------------------------------------------------- */

byte now;                       /* epoch of control */
byte moved[MOVES + 1];          /* move -> its epoch */
byte issued;                    /* moves */
byte installed;                 /* moves */
byte epoch[CHECKPOINTS + 1];    /* checkpoint -> its epoch; 0: not issued yet */
byte followed[CHECKPOINTS + 1]; /* checkpoint -> the one that it is a delta from */
byte withdrawn;                 /* epoch in which worker 1 was told to return its split; 0: not yet */
byte assigned;                  /* epoch in which worker 0 was given it; 0: not yet */
byte number;                    /* of the last checkpoint that was issued */
byte since;                     /* the last one that is committed */
byte under_way;
byte cuts;                      /* set of workers that have not written */
byte positions;                 /* set of workers whose sources have not said where they are */
byte position[(CHECKPOINTS + 1) * WORKERS];     /* (checkpoint, worker) -> set of records that are left to read */
bool announced;                 /* the launcher has heard of the one under way */

/* Workers ------------------------------------------------------------------------------- */

byte seen[WORKERS];             /* control's frontier at the source, which stamps with one less */
byte read[WORKERS];             /* control's frontier at F */
byte holder[WORKERS];           /* split -> worker whose source has it, or NOBODY */
byte cut[WORKERS];              /* the last checkpoint that was cut */
byte touched[WORKERS * (CHECKPOINTS + 2)];      /* (worker, cut at the end of an interval) -> set of records */
bool came[WORKERS * (CHECKPOINTS + 2)];         /* likewise: whether the bin came in it */
byte piece[WORKERS];            /* checkpoint whose piece is still to be written; NONE */
byte content[WORKERS];          /* of that piece: set of records */
bool entire[WORKERS];           /* of that piece: whether it is the bin as a whole */

/* The launcher, and what is on the disk ------------------------------------------------- */

byte written;                   /* epoch: those before it are in the file */
byte lines;                     /* set of records whose output is not in the file yet */
byte file;                      /* set of records */
byte synced;                    /* that of it which survives a loss of power */
byte mark;                      /* epoch; NONE: it was reached */
bool measured;                  /* the length at the mark is known */
byte length[CHECKPOINTS + 1];   /* checkpoint -> set of records */
byte segment[(CHECKPOINTS + 1) * WORKERS];      /* (checkpoint, worker) -> set of records */
byte whole;                     /* set of checkpoints that have the bin as a whole */
byte base[CHECKPOINTS + 1];     /* checkpoint -> the last one before, or itself, that has the bin as a whole */
byte chain[CHECKPOINTS + 1];    /* checkpoint -> set of checkpoints: itself, and those that it follows */
byte kept;                      /* the state of checkpoint 0, from which the incarnation goes on */
byte visible;                   /* the newest commit */
byte durable;                   /* the newest one that survives a loss of power */
byte acknowledged;              /* the newest one that the world was told of */

byte moves;
byte failures;

hidden byte k, n, u, v, x;      /* scratch within a step */
hidden byte c;
hidden byte nothing_is_doubled, the_bin_is_here, the_mark_is_in_time, epochs_go_on, nothing_is_lost;
hidden byte acknowledged_is_kept, state_is_what_was_read, output_is_what_was_read, output_is_there;

/* What progress tells ------------------------------------------------------------------- */

#define EARLIER_AT_F(x) ((place[0] == AT_F && stamp[0] < (x)) || (place[1] == AT_F && stamp[1] < (x)) || EARLIER_F2(x))
#define EARLIER_AT_S(w, x) ((place[0] == AT_S && owner[0] == (w) && stamp[0] < (x)) || \
                            (place[1] == AT_S && owner[1] == (w) && stamp[1] < (x)) || EARLIER_S2(w, x))
#if RECORDS > 2
#define EARLIER_F2(x) (place[2] == AT_F && stamp[2] < (x))
#define EARLIER_S2(w, x) (place[2] == AT_S && owner[2] == (w) && stamp[2] < (x))
#else
#define EARLIER_F2(x) false
#define EARLIER_S2(w, x) false
#endif

#define SOURCES_ARE_AT(x) (seen[0] > (x) && seen[1] > (x))
#define DATA_IS_AT(x) (SOURCES_ARE_AT(x) && !EARLIER_AT_F(x))
#define STATE_IS_AT(x) (read[0] >= (x) && read[1] >= (x) && (installed == issued || moved[installed] >= (x)))
#define STATE_HAS_PASSED(x) STATE_IS_AT((x) + 1)
#define OUTPUT_IS_AT(x) (DATA_IS_AT(x) && STATE_IS_AT(x) && !EARLIER_AT_S(0, x) && !EARLIER_AT_S(1, x))

#define REGISTERED(w) (cut[w] < number && read[w] > epoch[cut[w] + 1])

/* The cut ------------------------------------------------------------------------------- */

inline write_segment(w) {
    printf("worker %d has written %d for checkpoint %d\n", w, content[w], piece[w]);
    if
    :: under_way == piece[w] ->
#ifdef NO_BARRIER
        segment[AT(piece[w], w)] = (entire[w] -> state : content[w]);
#else
        segment[AT(piece[w], w)] = content[w];
#endif
        whole = whole | (entire[w] << piece[w]);
        cuts = cuts & ~only(w)
    :: else
    fi;
    piece[w] = NONE;
    content[w] = 0;
    entire[w] = false
}

inline take_cut(w) {
    cut[w]++;
    n = cut[w];
    printf("worker %d cuts checkpoint %d\n", w, n);
    u = 0;
    c = (WHOLE == n);
#ifdef SINCE_ABANDONED
    k = n;
#else
    k = followed[n] + 1;
#endif
    do
    :: k <= n -> u = u | TOUCHED(w, k); c = c || CAME(w, k); k++
    :: else -> break
    od;
#ifdef ARRIVED_IN_PART
    c = (WHOLE == n);
#endif
    entire[w] = c && home == w;
    content[w] = (home != w -> 0 : (c -> state : u));
    piece[w] = n;
    if
    :: content[w] == 0 && !entire[w] -> write_segment(w)
    :: else
    fi;
    forget(w, followed[n])
}

inline forget(w, upto) {
    k = 0;
    do
    :: k <= upto -> TOUCHED(w, k) = 0; CAME(w, k) = false; k++
    :: else -> break
    od;
    skip
}

#ifdef OFF_BY_ONE
#define IS_DUE(w, x) (REGISTERED(w) && epoch[cut[w] + 1] < (x))
#else
#define IS_DUE(w, x) (REGISTERED(w) && epoch[cut[w] + 1] <= (x))
#endif

inline before(w, x) {
    do
    :: IS_DUE(w, x) -> take_cut(w)
    :: else -> break
    od;
    skip
}

#ifdef IDLE_IGNORES_STATE
#define IDLE_STATE(x) true
#else
#define IDLE_STATE(x) STATE_IS_AT(x)
#endif
#ifdef IDLE_IGNORES_STASH
#define IDLE_STASH(w, x) true
#else
#define IDLE_STASH(w, x) (!EARLIER_AT_S(w, x))
#endif
#define IS_IDLE(w, x) (DATA_IS_AT(x) && IDLE_STATE(x) && IDLE_STASH(w, x))

/* Workers ------------------------------------------------------------------------------- */

inline say_position(w, number_of) {
    printf("worker %d says where it is at checkpoint %d\n", w, number_of);
    k = 0;
    position[AT(number_of, w)] = 0;
    do
    :: k < RECORDS ->
        position[AT(number_of, w)] = position[AT(number_of, w)] | ((holder[SPLIT(k)] == w && place[k] == UNREAD) << k);
        k++
    :: else -> break
    od;
    if
    :: under_way == number_of -> positions = positions & ~only(w)
    :: else
    fi
}

inline see(w) {
    n = 1;
    do
    :: n <= number ->
#ifdef POSITIONS_EARLY
        if
        :: epoch[n] == seen[w] + 1 -> say_position(w, n)
        :: else
        fi;
#else
        if
        :: epoch[n] == seen[w] -> say_position(w, n)
        :: else
        fi;
#endif
        n++
    :: else -> break
    od;
    if
    :: w == 1 && withdrawn == seen[w] && withdrawn != 0 -> printf("worker 1 returns its split\n"); holder[1] = NOBODY
    :: w == 0 && assigned == seen[w] && assigned != 0 -> printf("worker 0 is given the split\n"); holder[1] = 0
    :: else
    fi;
    seen[w]++
}

/* F routes by the table at the record's epoch, as soon as it knows that. */
inline route(r) {
    if
    :: place[r] == AT_F && read[owner[r]] > stamp[r] ->
        owner[r] = 0;
        k = 0;
        do
        :: k < issued && moved[k] <= stamp[r] -> owner[r] = 1 - owner[r]; k++
        :: else -> break
        od;
        place[r] = AT_S
    :: else
    fi
}

inline read_record(r) {
    printf("worker %d reads record %d at epoch %d\n", holder[SPLIT(r)], r, seen[holder[SPLIT(r)]] - 1);
    place[r] = AT_F;
    owner[r] = holder[SPLIT(r)];
    stamp[r] = seen[owner[r]] - 1;
    route(r)
}

inline read_command(w) {
    read[w]++;
    route(0);
    route(1);
#if RECORDS > 2
    route(2);
#endif
    skip
}

inline apply(r) {
    before(owner[r], stamp[r]);
    printf("worker %d applies record %d of epoch %d\n", owner[r], r, stamp[r]);
    the_bin_is_here = (home == owner[r]);
    assert(the_bin_is_here);
    nothing_is_doubled = !(state & only(r));
    assert(nothing_is_doubled);
    state = state | only(r);
    TOUCHED(owner[r], cut[owner[r]] + 1) = TOUCHED(owner[r], cut[owner[r]] + 1) | only(r);
    lines = lines | only(r);
    place[r] = APPLIED;
    owner[r] = 0
}

inline ship(w) {
#ifndef SHIPS_UNCUT
    before(w, moved[installed]);
#endif
    printf("worker %d ships the bin at epoch %d\n", w, moved[installed]);
    home = NOBODY
}

inline install(w) {
#ifndef INSTALLS_UNCUT
    before(w, moved[installed]);
#endif
    printf("worker %d has the bin of epoch %d\n", w, moved[installed]);
    home = w;
    CAME(w, cut[w] + 1) = true;
    installed++
}

inline abandon() {
    printf("coordinator abandons checkpoint %d\n", under_way);
    k = 0;
    do
    :: k < WORKERS -> position[AT(under_way, k)] = 0; segment[AT(under_way, k)] = 0; k++
    :: else -> break
    od;
    whole = whole & ~only(under_way);
    under_way = NONE;
    cuts = 0;
    positions = 0;
    announced = false;
    mark = NONE;
    measured = false
}

inline fail_segment(w) {
    printf("worker %d cannot write for checkpoint %d\n", w, piece[w]);
    failures--;
    if
    :: under_way == piece[w] -> abandon()
    :: else
    fi;
    piece[w] = NONE;
    content[w] = 0;
    entire[w] = false
}

/* The coordinator ----------------------------------------------------------------------- */

#ifdef BEGINS_BETWEEN
#define MAY_BEGIN true
#else
#define MAY_BEGIN (withdrawn == 0 || assigned != 0)
#endif

inline begin_checkpoint() {
    number++;
    printf("coordinator begins checkpoint %d, since %d, at epoch %d\n", number, since, now);
    epoch[number] = now;
    followed[number] = since;
    under_way = number;
    cuts = BOTH;
    positions = BOTH;
    announced = false;
    now++
}

#ifdef READY_EARLY
#define HAS_WRITTEN (cuts != BOTH)
#else
#define HAS_WRITTEN (cuts == 0)
#endif

/* The launcher -------------------------------------------------------------------------- */

#ifdef BEGUN_ASIDE
#define HAS_BEEN_TOLD(x) true
#else
#define HAS_BEEN_TOLD(x) (under_way == NONE || announced || (x) <= epoch[under_way])
#endif

inline announce() {
    the_mark_is_in_time = (written <= epoch[under_way]);
    assert(the_mark_is_in_time);
    announced = true;
    mark = epoch[under_way];
    measured = false
}

#define LIMIT (mark == NONE -> LAST - 1 : mark)     /* epoch up to which the launcher writes without more ado */

inline write_output() {
    do
    :: written < LIMIT && OUTPUT_IS_AT(written + 1) && HAS_BEEN_TOLD(written + 1) ->
        k = 0;
        do
        :: k < RECORDS && (lines & only(k)) && stamp[k] == written ->
            printf("launcher writes the output of record %d at epoch %d\n", k, written);
            epochs_go_on = (stamp[k] >= BEGINNING);
            assert(epochs_go_on);
            nothing_is_doubled = !(file & only(k));
            assert(nothing_is_doubled);
            file = file | only(k);
            lines = lines & ~only(k);
            stamp[k] = 0;
            k++
        :: k < RECORDS && !((lines & only(k)) && stamp[k] == written) -> k++
        :: k == RECORDS -> break
        od;
        written++
    :: else -> break
    od;
    skip
}

inline measure() {
#ifndef OUTPUT_UNSYNCED
    synced = file;
#endif
    length[under_way] = file;
    printf("launcher has measured %d at the mark of checkpoint %d\n", file, under_way);
    measured = true;
    mark = NONE
}

inline link_commit() {
    printf("launcher links the commit of checkpoint %d\n", under_way);
    visible = under_way;
    base[under_way] = ((whole & only(under_way)) -> under_way : base[followed[under_way]]);
    chain[under_way] = chain[followed[under_way]] | only(under_way);
#ifdef ACKNOWLEDGES_EARLY
    acknowledged = under_way;
#endif
    skip
}

inline acknowledge() {
    printf("launcher has synced the commit of checkpoint %d\n", visible);
    durable = visible;
    acknowledged = visible;
    since = visible;
    under_way = NONE;
    announced = false;
    measured = false;
    forget(0, since);
    forget(1, since)
}

inline fail_commit() {
    printf("launcher cannot commit checkpoint %d\n", under_way);
    failures--;
#ifdef TOLD_EARLY
    forget(0, under_way);
    forget(1, under_way);
#endif
    abandon()
}

/* A crash, and the next incarnation ------------------------------------------------------- */

inline resume(from) {
    n = from;
    acknowledged_is_kept = (n == acknowledged || (n > acknowledged && n == visible));
    assert(acknowledged_is_kept);
    v = (base[n] == 0 -> kept : 0);
    k = 1;
    do
    :: k <= n ->
        if
        :: k >= base[n] && (chain[n] & only(k)) -> v = v | segment[AT(k, 0)] | segment[AT(k, 1)]
        :: else
        fi;
        k++
    :: else -> break
    od;
    x = ALL & ~(position[AT(n, 0)] | position[AT(n, 1)]);
    printf("launcher goes on from checkpoint %d: state %d, read %d, output %d of %d\n", n, v, x, length[n], file);
    state_is_what_was_read = (v == x);
    assert(state_is_what_was_read);
    output_is_there = !(length[n] & ~file);
    assert(output_is_there);
    output_is_what_was_read = (length[n] == x);
    assert(output_is_what_was_read);
    begin_incarnation()
}

inline begin_incarnation() {
    kept = v;
    state = v;
    file = v;
    synced = v;
    length[0] = v;
    lines = 0;
    home = 0;
    k = 0;
    do
    :: k < RECORDS -> place[k] = ((v & only(k)) -> APPLIED : UNREAD); stamp[k] = 0; owner[k] = 0; k++
    :: else -> break
    od;
    now = BEGINNING + 1;
#ifdef RESUMES_AT_T
    now = BEGINNING;
#endif
    issued = 0;
    installed = 0;
    k = 0;
    do
    :: k <= MOVES -> moved[k] = 0; k++
    :: else -> break
    od;
    withdrawn = 0;
    assigned = 0;
    position[AT(0, 0)] = ALL & ~v;
    number = 0;
    since = 0;
    under_way = NONE;
    cuts = 0;
    positions = 0;
    k = 1;
    do
    :: k <= CHECKPOINTS ->
        epoch[k] = 0;
        followed[k] = 0;
        length[k] = 0;
        base[k] = 0;
        chain[k] = 0;
        position[AT(k, 0)] = 0;
        position[AT(k, 1)] = 0;
        segment[AT(k, 0)] = 0;
        segment[AT(k, 1)] = 0;
        k++
    :: else -> break
    od;
    whole = 0;
    k = 0;
    do
    :: k < WORKERS ->
        seen[k] = now;
        holder[k] = k;
        read[k] = now;
        cut[k] = 0;
        piece[k] = NONE;
        content[k] = 0;
        entire[k] = false;
        u = 0;
        do
        :: u < CHECKPOINTS + 2 -> TOUCHED(k, u) = 0; CAME(k, u) = false; u++
        :: else -> break
        od;
        k++
    :: else -> break
    od;
    written = 0;
    announced = false;
    moves = MOVES;
    failures = FAILURES;
    mark = NONE;
    measured = false;
    visible = 0;
    durable = 0;
    acknowledged = 0
}

/* ---------------------------------------------------------------------------------------- */

#define IS_OVER (now == LAST && file == ALL && under_way == NONE)

#define RECORD(r) \
    :: d_step { place[r] == UNREAD && holder[SPLIT(r)] != NOBODY && seen[holder[SPLIT(r)] & 1] < LAST && \
                (r < 2 || place[0] != UNREAD) -> read_record(r) } \
    :: d_step { place[r] == AT_S && DATA_IS_AT(stamp[r]) && !EARLIER_AT_S(owner[r], stamp[r]) && \
                STATE_HAS_PASSED(stamp[r]) -> apply(r) }

#define WORKER(w) \
    :: d_step { seen[w] < now && (seen[w] < LAST - 1 || HAS_READ_ALL(w)) -> see(w) } \
    :: d_step { read[w] < now -> read_command(w) } \
    :: d_step { installed < issued && home == w && read[w] > moved[installed] && OUTPUT_IS_AT(moved[installed]) -> \
                ship(w) } \
    :: d_step { home == NOBODY && w != (installed & 1) -> install(w) } \
    :: d_step { REGISTERED(w) && IS_IDLE(w, epoch[cut[w] + 1]) -> take_cut(w) } \
    :: d_step { piece[w] != NONE -> write_segment(w) } \
    :: d_step { piece[w] != NONE && failures > 0 -> fail_segment(w) }

#define HAS_READ(w, r) (place[r] != UNREAD || holder[SPLIT(r)] != (w))
#if RECORDS > 2
#define HAS_READ_ALL(w) (HAS_READ(w, 0) && HAS_READ(w, 1) && HAS_READ(w, 2))
#else
#define HAS_READ_ALL(w) (HAS_READ(w, 0) && HAS_READ(w, 1))
#endif

#define CAN_COMMIT (under_way != NONE && visible < under_way && measured && HAS_WRITTEN && positions == 0 && \
                    OUTPUT_IS_AT(epoch[under_way]))

active proctype run_job() {
    d_step { v = 0; begin_incarnation() }
    do
    :: IS_OVER -> break

    RECORD(0)
    RECORD(1)
#if RECORDS > 2
    RECORD(2)
#endif
    WORKER(0)
    WORKER(1)

    :: d_step { now < LAST && moves == 0 && number == CHECKPOINTS && (HANDS == 0 || assigned != 0) -> now++ }
    :: d_step { moves > 0 -> moves--; moved[issued] = now; issued++; now++ }
    :: d_step { number < CHECKPOINTS && under_way == NONE && MAY_BEGIN -> begin_checkpoint() }
#if HANDS > 0
    :: d_step { withdrawn == 0 -> withdrawn = now; now++ }
    :: d_step { assigned == 0 && holder[1] == NOBODY -> assigned = now; now++ }
#endif

    :: d_step { under_way != NONE && !announced -> announce() }
    :: d_step { written < LIMIT && OUTPUT_IS_AT(written + 1) && HAS_BEEN_TOLD(written + 1) -> write_output() }
    :: d_step { mark != NONE && written == mark -> measure() }
    :: d_step { CAN_COMMIT -> link_commit() }
    :: d_step { CAN_COMMIT && failures > 0 -> fail_commit() }
    :: d_step { durable < visible -> acknowledge() }

    :: d_step { printf("worker 0 is killed\n"); resume(visible) }
    :: d_step { printf("launcher loses its power\n"); file = synced; resume(durable) }
    :: d_step { durable < visible -> printf("launcher loses its power, and keeps the link\n"); file = synced; \
                resume(visible) }
    od;
    nothing_is_lost = (file == ALL && state == ALL);
    assert(nothing_is_lost)
}

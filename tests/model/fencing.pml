/* Launchers and one store, as a model for spin: all interleavings of launchers that each believe that it is theirs.

   No lock keeps them apart, and each may stop for as long as it likes between two operations of the disk, or for ever.
   A launcher takes the store over, has checkpoints written and commits them, removes what is not needed any more, and
   begins anew when it has lost its processes. The disk fails, and the power: then all launchers are gone, and of names
   that were not synced, given or taken away, each may be there or not.

   What is asserted, and the name of the assertion
     acknowledged_is_kept      whoever looks now finds what was acknowledged, by whichever launcher
     at_most_one_is_newer      and at most one checkpoint more
     the_fenced_are_not_read   a new highest commit follows the one before
     the_abandoned_stay_so     no checkpoint is found that was given up
     kept_commits_are_whole    the highest commit, and those that it keeps, have all of their segments
     jobs_begin_with_what_they_read  what a launcher takes over is what it has planned by
     nobody_takes_it_back      none begins anew that another one has followed
   and by spin itself: nothing waits for ever (no invalid end state).

   Step here                          In megaflow's code; that these names exist is tested
     read_store, found, IS_TAKEN        function read_commits, function begin; Incarnation.begin_anew
     cut                                CutPacker.take
     link, compose, choose_kept         Incarnation.commit, Incarnation._to_keep; Store.commit
     doubt, settle                      Incarnation._settle; StoreKeeper.work; class CommitInDoubt
     look                               Incarnation._check_highest
     acknowledge, give_up               StoreKeeper.work; Incarnation.give_up; message Committed, message CommitFailed
     clean, remove_commits, sweep       Incarnation.collect, Incarnation._doom_abandoned, Incarnation._doom_what_is_left

   What keeps it small and loses nothing
     - A launcher that ends is one that stops for ever, but in its memory there is nothing that counts.
     - Segments are durable when they are written, and when they are removed: one more is an orphan, and no harm.
     - A checkpoint is one segment, of the same number, which no other launcher uses: incarnations are in the names. It
       follows all that its launcher knows to be committed, or is whole by itself.
     - Files that are removed together are removed in one step: nobody reads them as commits that count.
     - A name that a failed sync has forgotten is not made durable by a later one; it may be there nevertheless.
   What it takes for granted: the folder is listed in one step, and links fail if the name is there (see store).
   Not here: what is in a segment (see checkpoint.pml); damage; the output, which its own lock protects.

   Planted faults, which the check must find: READS_AGAIN, TAKES_IT_BACK, NO_INCARNATION, CLEANS_FIRST, RENAMES,
   NEVER_LOOKS, ANY_IS_MINE, ABSENT_IS_FREE, DOUBTS_NOTHING, ACKNOWLEDGES_EARLY, COMMITS_GO_EARLY, KEEPS_NO_OTHERS,
   SWEEPS_ALL; test_fencing_model.py says what each does. */

#ifndef LAUNCHERS
#define LAUNCHERS 2
#endif
#ifndef CHECKPOINTS
#define CHECKPOINTS 3           /* of all launchers together */
#endif
#ifndef FAILURES
#define FAILURES 1              /* of the disk */
#endif
#ifndef POWER
#define POWER 1                 /* times that it fails */
#endif
#ifndef KEPT
#define KEPT 1                  /* checkpoints */
#endif
#ifndef RESTARTS
#define RESTARTS 1              /* times that a launcher begins anew, since it has lost its processes */
#endif

#define NUMBERS (LAUNCHERS + RESTARTS + CHECKPOINTS + FAILURES)    /* of commits */
#define CONTENTS (NUMBERS + LAUNCHERS + RESTARTS)       /* of commits that were ever written */
#define NOTHING 0               /* no content, no number */

#define bit(n) (1 << (n))
#define KNOWN(l, n) known[(l) * (NUMBERS + 1) + (n)]
#define EXISTS(n) ((visible & bit(n)) != 0)

mtype = { ABSENT, AGAIN, SETTLE, LINK, SYNC, LOOK, ACKNOWLEDGE, CLEAN, SWEEP, IDLE, GONE };

/* The disk: sets are of numbers of commits, or of segments, which are numbered through ---- */

short visible;                  /* set of commits */
short durable;                  /* those which are there after a loss of power */
short lying;                    /* those that a failed sync has forgotten: no later one makes them durable */
byte file[NUMBERS + 1];         /* commit -> its content */
byte segments;                  /* set of segments */

/* What was ever written */
byte line[CONTENTS + 1];        /* content -> set of checkpoints: its own, and those that it follows */
byte named[CONTENTS + 1];       /* content -> set of segments */
short kept[CONTENTS + 1];       /* content -> set of other commits */
byte author[CONTENTS + 1];      /* content -> incarnation */
byte written[LAUNCHERS + RESTARTS + 2];  /* incarnation -> set of segments */
byte contents;

/* Launchers ----------------------------------------------------------------------------- */

mtype does[LAUNCHERS];
bool begun[LAUNCHERS];          /* its incarnation is committed */
byte number[LAUNCHERS];         /* of the newest commit that it knows to be there */
byte latest[LAUNCHERS];         /* content of the newest that it knows to be durable */
byte known[LAUNCHERS * (NUMBERS + 1)];  /* (launcher, commit) -> content */
byte doubtful[LAUNCHERS];       /* commit; NOTHING */
byte content[LAUNCHERS];        /* that it has written last */
byte draft[LAUNCHERS];          /* checkpoints: the line of what it is to commit */
byte names[LAUNCHERS];          /* segments of that */
byte doomed[LAUNCHERS];         /* set of segments */
byte incarnation[LAUNCHERS];    /* its own */
byte firm[LAUNCHERS];           /* number of the latest */
byte found[LAUNCHERS];          /* the line by which it has planned what its job reads */

byte checkpoints;               /* that were begun by now */
byte failures = FAILURES;
byte power = POWER;
byte restarts = RESTARTS;

/* The truth, which nobody sees */
byte acknowledged;              /* set of checkpoints that the world was told of */
byte abandoned;                 /* set of checkpoints that were given up */
byte reign;                     /* the highest incarnation that has begun */

hidden byte k, n, c, m;         /* scratch within a step */
hidden short s;
hidden byte acknowledged_is_kept, at_most_one_is_newer, the_fenced_are_not_read, kept_commits_are_whole;
hidden byte nobody_takes_it_back, the_abandoned_stay_so, jobs_begin_with_what_they_read;

inline find_highest() {         /* n */
    n = NUMBERS;
    do
    :: n > 0 && !EXISTS(n) -> n--
    :: else -> break
    od;
    skip
}

/* Whoever looked now would find the newest acknowledged checkpoint, or one newer, and all that is kept. */
inline look_around() {
    find_highest();
    if
    :: n > 0 ->
        c = file[n];
        acknowledged_is_kept = !(acknowledged & ~line[c]);
        assert(acknowledged_is_kept);
        m = line[c] & ~acknowledged;
        at_most_one_is_newer = !(m & (m - 1));
        assert(at_most_one_is_newer);
        the_abandoned_stay_so = !(line[c] & abandoned);
        assert(the_abandoned_stay_so);
        kept_commits_are_whole = !(named[c] & ~segments) && !(kept[c] & ~visible);
        assert(kept_commits_are_whole);
        k = 1;
        do
        :: k < n ->
            kept_commits_are_whole = !(kept[c] & bit(k)) || !(named[file[k]] & ~segments);
            assert(kept_commits_are_whole);
            k++
        :: else -> break
        od
    :: else ->
        acknowledged_is_kept = (acknowledged == 0);
        assert(acknowledged_is_kept)
    fi;
    skip
}

inline forget(l) {
    k = 0;
    do
    :: k <= NUMBERS -> KNOWN(l, k) = NOTHING; k++
    :: else -> break
    od;
    number[l] = 0;
    latest[l] = NOTHING;
    doubtful[l] = NOTHING;
    content[l] = NOTHING;
    draft[l] = 0;
    names[l] = 0;
    doomed[l] = 0;
    incarnation[l] = 0;
    firm[l] = 0;
    found[l] = 0;
    begun[l] = false;
    does[l] = GONE
}

/* Beginning ------------------------------------------------------------------------------ */

/* Whoever begins anew goes on from a commit of its own, or not at all. */
#ifdef TAKES_IT_BACK
#define IS_TAKEN(l) false
#else
#define IS_TAKEN(l) (incarnation[l] != 0 && does[l] != AGAIN && author[file[n]] != incarnation[l])
#endif

inline read_store(l) {
    find_highest();
    printf("launcher %d reads commit %d\n", l, n);
    if
    :: IS_TAKEN(l) ->
        printf("launcher %d finds that another one has begun\n", l);
        forget(l)
    :: else ->
        nobody_takes_it_back = (!begun[l] || incarnation[l] == reign);
        assert(nobody_takes_it_back);
        k = 0;
        do
        :: k <= NUMBERS -> KNOWN(l, k) = NOTHING; k++
        :: else -> break
        od;
        c = file[n] * (n > 0);
        number[l] = n;
        firm[l] = n;
        doubtful[l] = NOTHING;
        doomed[l] = 0;
        begun[l] = false;
        KNOWN(l, n) = c;
        latest[l] = c;
        incarnation[l] = author[c] + 1;
        draft[l] = line[c];
        names[l] = named[c];
        k = 1;
        do
        :: k < n ->
            if
            :: kept[c] & bit(k) -> KNOWN(l, k) = file[k]
            :: else
            fi;
            k++
        :: else -> break
        od;
        if
        :: does[l] != AGAIN -> found[l] = draft[l]
        :: else
        fi;
#ifdef READS_AGAIN
        does[l] = (does[l] == AGAIN -> LINK : AGAIN)
#else
        does[l] = LINK
#endif
    fi
}

/* Commits ------------------------------------------------------------------------------- */

#ifdef ANY_IS_MINE
#define IS_MINE(l) true
#else
#define IS_MINE(l) (file[doubtful[l]] == content[l])
#endif

inline settle(l) {
    if
    :: EXISTS(doubtful[l]) && IS_MINE(l) ->
        printf("launcher %d finds its commit %d\n", l, doubtful[l]);
        number[l] = doubtful[l];
        KNOWN(l, number[l]) = content[l];
        doubtful[l] = NOTHING;
        does[l] = LINK
    :: EXISTS(doubtful[l]) && !IS_MINE(l) ->
        printf("launcher %d finds another one's commit %d\n", l, doubtful[l]);
        forget(l)
    :: else ->
        printf("launcher %d does not find its commit %d\n", l, doubtful[l]);
        find_highest();
        if
#ifndef ABSENT_IS_FREE
        :: n > doubtful[l] -> forget(l)
#endif
        :: else -> doubtful[l] = NOTHING; does[l] = LINK
        fi
    fi
}

/* The newest commits of the KEPT - 1 checkpoints before that of this draft. */
inline choose_kept(l) {         /* s */
    s = 0;
    m = draft[l];
    c = 1;
    k = number[l];
    do
    :: k > 0 && c < KEPT ->
        if
        :: KNOWN(l, k) != NOTHING && line[KNOWN(l, k)] != m ->
            s = s | bit(k);
            m = line[KNOWN(l, k)];
            c++
        :: else
        fi;
        k--
    :: else -> break
    od;
    skip
}

inline remove_commits(l) {
    printf("launcher %d removes old commits\n", l);
    k = 1;
    do
    :: k < number[l] ->
        if
        :: KNOWN(l, k) != NOTHING && !(kept[latest[l]] & bit(k)) ->
            visible = visible & ~bit(k);
            doomed[l] = doomed[l] | named[KNOWN(l, k)];
            KNOWN(l, k) = NOTHING
        :: else
        fi;
        if
        :: KNOWN(l, k) == NOTHING && !begun[l] -> visible = visible & ~bit(k)
        :: else
        fi;
        k++
    :: else -> break
    od;
    skip
}

inline give_up(l) {
    printf("launcher %d gives a checkpoint up\n", l);
    abandoned = abandoned | (draft[l] & ~line[latest[l]]);
    doomed[l] = doomed[l] | (names[l] & ~named[latest[l]]);
    draft[l] = line[latest[l]];
    names[l] = named[latest[l]];
    does[l] = IDLE
}

inline doubt(l) {
#ifdef DOUBTS_NOTHING
    give_up(l)
#else
    doubtful[l] = number[l] + 1;
    does[l] = SETTLE
#endif
}

inline compose(l) {
    choose_kept(l);
    contents++;
    line[contents] = draft[l];
    named[contents] = names[l];
    kept[contents] = s;
    author[contents] = incarnation[l];
    content[l] = contents
}

inline fail_link(l) {
    printf("launcher %d fails to link commit %d\n", l, number[l] + 1);
    failures--;
    if
    :: begun[l] -> compose(l); doubt(l)
    :: else -> forget(l)
    fi
}

inline link(l) {
    n = number[l] + 1;
    if
#ifndef RENAMES
    :: EXISTS(n) ->
        printf("launcher %d finds that there is a commit %d\n", l, n);
        forget(l)
#endif
    :: else ->
        compose(l);
        find_highest();
        the_fenced_are_not_read = (n > number[l] + 1 || n == 0 || !(line[file[n]] & ~draft[l]));
        assert(the_fenced_are_not_read);
        n = number[l] + 1;
        printf("launcher %d links commit %d\n", l, n);
        file[n] = contents;
        visible = visible | bit(n);
        durable = durable & ~bit(n);
        lying = lying & ~bit(n);
#ifdef COMMITS_GO_EARLY
        remove_commits(l);
#endif
#ifdef ACKNOWLEDGES_EARLY
        acknowledged = acknowledged | line[contents];
#endif
        does[l] = SYNC
    fi
}

inline sync_names() {
    durable = visible & ~lying
}

inline fail_sync(l) {
    printf("launcher %d fails to sync commit %d\n", l, number[l] + 1);
    failures--;
    lying = lying | bit(number[l] + 1);
    if
    :: begun[l] -> doubt(l)
    :: else -> forget(l)
    fi
}

inline look(l) {
    find_highest();
    if
#ifndef NEVER_LOOKS
    :: n > number[l] + 1 ->
        printf("launcher %d sees commit %d, and takes back %d\n", l, n, number[l] + 1);
        visible = visible & ~bit(number[l] + 1);
        sync_names();
        forget(l)
#endif
    :: else ->
        number[l]++;
        KNOWN(l, number[l]) = content[l];
        firm[l] = number[l];
        latest[l] = content[l];
        does[l] = ACKNOWLEDGE
    fi
}

inline acknowledge(l) {
    printf("launcher %d acknowledges commit %d\n", l, number[l]);
    if
    :: !begun[l] ->
        jobs_begin_with_what_they_read = (found[l] == draft[l]);
        assert(jobs_begin_with_what_they_read)
    :: else
    fi;
    reign = (incarnation[l] > reign -> incarnation[l] : reign);
    acknowledged = acknowledged | draft[l];
    look_around();
    does[l] = CLEAN
}

/* What is removed ------------------------------------------------------------------------ */

inline clean(l) {
    remove_commits(l);
    look_around();
    does[l] = SWEEP
}

inline sweep(l) {
    printf("launcher %d removes old segments\n", l);
    sync_names();
    if
#ifdef SWEEPS_ALL
    :: true -> doomed[l] = segments
#else
    :: !begun[l] ->             /* those of all incarnations before */
        k = 0;
        do
        :: k < incarnation[l] -> doomed[l] = doomed[l] | (segments & written[k]); k++
        :: else -> break
        od
    :: else ->                  /* those of this one, of checkpoints before the newest */
        m = written[incarnation[l]] & named[latest[l]];
        k = 1;
        do
        :: m & (m - 1) -> m = m & (m - 1)
        :: else -> break
        od;
        doomed[l] = doomed[l] | (m > 0 -> written[incarnation[l]] & (m - 1) : 0)
#endif
    fi;
    k = 1;
    do
    :: k <= NUMBERS ->
#ifndef KEEPS_NO_OTHERS
        doomed[l] = doomed[l] & ~named[KNOWN(l, k)];
#endif
        k++
    :: else -> break
    od;
    segments = segments & ~doomed[l];
    doomed[l] = 0;
    begun[l] = true;
    look_around();
    does[l] = IDLE
}

/* What launchers do ----------------------------------------------------------------------- */

inline cut(l, is_whole) {
    printf("launcher %d has checkpoint %d written\n", l, checkpoints);
    segments = segments | bit(checkpoints);
    written[incarnation[l]] = written[incarnation[l]] | bit(checkpoints);
    draft[l] = line[latest[l]] | bit(checkpoints);
    names[l] = (is_whole -> 0 : named[latest[l]]) | bit(checkpoints);
    checkpoints++;
    does[l] = LINK
}

#define HAS_WORK (checkpoints < CHECKPOINTS)

#define LAUNCHER(l, is_next) \
    :: d_step { does[l] == ABSENT && is_next -> BEGIN(l) } \
    :: d_step { does[l] == AGAIN -> read_store(l) } \
    :: d_step { (does[l] == IDLE || does[l] == SETTLE) && begun[l] && restarts > 0 -> \
                printf("launcher %d loses its processes\n", l); restarts--; read_store(l) } \
    :: d_step { does[l] == SETTLE -> settle(l) } \
    :: d_step { does[l] == LINK -> link(l) } \
    :: d_step { does[l] == LINK && begun[l] && failures > 0 && number[l] == firm[l] -> failures--; give_up(l) } \
    :: d_step { does[l] == LINK && failures > 0 && !EXISTS(number[l] + 1) -> fail_link(l) } \
    :: d_step { does[l] == SYNC -> sync_names(); look_around(); does[l] = LOOK } \
    :: d_step { does[l] == SYNC && failures > 0 -> fail_sync(l) } \
    :: d_step { does[l] == LOOK -> look(l) } \
    :: d_step { does[l] == ACKNOWLEDGE -> acknowledge(l) } \
    :: d_step { does[l] == CLEAN -> clean(l) } \
    :: d_step { does[l] == SWEEP -> sweep(l) } \
    :: d_step { does[l] == IDLE && HAS_WORK -> cut(l, false) } \
    :: d_step { does[l] == IDLE && HAS_WORK -> cut(l, true) }

#ifdef CLEANS_FIRST
#define BEGIN(l) read_store(l); remove_commits(l)
#else
#ifdef NO_INCARNATION
#define BEGIN(l) read_store(l); does[l] = CLEAN
#else
#define BEGIN(l) read_store(l)
#endif
#endif

#define IS_DONE(l) (does[l] == GONE || (does[l] == IDLE && !HAS_WORK))

active proctype run_store() {
    d_step {
        k = 0;
        do
        :: k < LAUNCHERS -> does[k] = ABSENT; k++
        :: else -> break
        od;
        k = 0
    }
    do
    :: IS_DONE(0) && IS_DONE(1) && IS_DONE(LAUNCHERS - 1) -> break

    LAUNCHER(0, true)
    LAUNCHER(1, does[0] != ABSENT)
#if LAUNCHERS > 2
    LAUNCHER(2, does[1] != ABSENT)
#endif

    :: atomic { power > 0 ->
        printf("launcher 0 and all others lose their power\n");
        power--;
        n = 1;
        do
        :: n <= NUMBERS && EXISTS(n) && !(durable & bit(n)) -> n++
        :: n <= NUMBERS && EXISTS(n) && !(durable & bit(n)) -> visible = visible & ~bit(n); n++
        :: n <= NUMBERS && !EXISTS(n) && (durable & bit(n)) -> n++
        :: n <= NUMBERS && !EXISTS(n) && (durable & bit(n)) -> visible = visible | bit(n); n++
        :: n <= NUMBERS && !(EXISTS(n) ^ ((durable & bit(n)) != 0)) -> n++
        :: n > NUMBERS -> break
        od;
        d_step {
            durable = visible;
            lying = 0;
            n = 0;
            do
            :: n < LAUNCHERS ->
                if
                :: does[n] != ABSENT -> forget(n)
                :: else
                fi;
                n++
            :: else -> break
            od;
            look_around()
        } }
    od
}

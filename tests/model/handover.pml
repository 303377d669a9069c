/* The hand-over of the coordinator's role, as a model for spin: all interleavings of three workers.

   Worker 0 begins as the coordinator. A coordinator hands its role to any other member, which may at once hand it on,
   also back; so there is always a third party. One that has handed over may be let go: it says goodbye, and is gone.
   All workers report to the one that they take for the coordinator, at any moment, also to themselves. A report is a
   request as well: it waits in the coordinator's state, which goes with the succession, until the coordinator writes a
   numbered command for it, which every member reads.

   What is asserted, and the name of the assertion
     reports_come_in_order       coordinators, taken together, hear reports 0, 1, 2 ... of each worker, each once
     one_coordinator             no worker begins to coordinate while another one does
     coordinator_mail_has_a_way  no report or fence comes to a worker that has not heard of any hand-over to it
     commands_are_consecutive    each worker reads commands 0, 1, 2 ..., whichever coordinator wrote them
     nobody_writes_to_the_gone   nothing is on its way to a worker that says goodbye, nor is anything sent to it later
     no_report_is_lost           when all has come to rest, every report has been heard
     no_request_is_lost          and was answered by a command, which every worker that is not gone has read
   and by spin itself: nothing waits for ever (no invalid end state), no lane overflows.

   Step here                          In megaflow's code; that these names exist is tested
     report                             Member.report; message Report
     hand_over, SUCCESSION              Role.hand_over; Sequencer.succession; message Succession
     the state that goes with it        class JobState; Sequencer.resume
     AT_REST                            Controller._is_at_rest
     receive: SUCCESSION, SUCCEEDING    Role.hear; message Succeeding
     receive: HANDOVER                  Member.hear; message Handover, message Fence
     take: kept and heard               Successor.take
     take: passed on                    Role._take; message PassedOn
     begin, and what was heard          Role.begin
     command, read_command              CommandStream.issue; ControlInput._check_number

   What keeps it small and loses nothing
     - The engine's messages and the programs' reports are on the same lanes, in one order: all are reports.
     - What waits in the queue of changes, and reports that the program has not worked off, are requests.
     - Commands are on lanes of their own and are read at any later moment, so those of two writers may overtake each
       other more often than in a job.
     - That all have read all commands is a fact that the coordinator sees, as a probe does, at any later moment: it
       stays true until the coordinator itself writes the next one.
     - What a successor has kept it hears one by one, and before all that comes then; it may hand over in between.
     - The successor is any member; in the code the lowest one outside the process.
   Not here: joins; of a leave (see leaving.pml) all but its end: a worker that is let go has read all commands written
   before, and its goodbye ends the change; the control stream's capability, which goes with the role (see
   progcaster.py); clients (they ask again).

   Planted faults, which the check must find: NO_FENCE, RESUME_EARLY, FENCE_DIRECT, NO_FORWARD, EARLY_HANDOVER,
   STATE_BEHIND, REQUESTS_LEFT, NO_REST, COUNTER_ANEW, KEEPS_ACTING, LEAVES_EARLY; test_handover_model.py says what
   each does. */

#ifndef REPORTS
#define REPORTS 3               /* of all workers together, answers aside */
#endif
#ifndef QUESTIONS
#define QUESTIONS 0             /* of coordinators, each answered by a report */
#endif
#ifndef HANDOVERS
#define HANDOVERS 2
#endif
#ifndef LEAVES
#define LEAVES 1                /* of workers that have handed over */
#endif

#define WORKERS 3
#define EVERYBODY ((1 << WORKERS) - 1)
#define NOBODY 255
#define REPORTS_MAX (REPORTS + QUESTIONS)
#define LANE_MAX (REPORTS_MAX + 6)

#define only(w) (1 << (w))
#define MAIL(from, to) mail[(from) * WORKERS + (to)]
#define CONTROL(from, to) control[(from) * WORKERS + (to)]
#define KEPT(by, sender) kept[(by) * WORKERS + (sender)]

mtype = { REPORT, FENCE, SUCCESSION, STATE, SUCCEEDING, HANDOVER, QUESTION, LEAVE, GOODBYE };

/* What; whether it is forwarded; who sent it first (of a succession: set of members); a number (packed: the state). */
chan mail[WORKERS * WORKERS] = [LANE_MAX] of { mtype, bool, byte, byte };
chan control[WORKERS * WORKERS] = [REPORTS_MAX] of { byte };    /* number of a command */
chan kept[WORKERS * WORKERS] = [REPORTS_MAX] of { byte };       /* a successor's, of one sender: number of a report */
chan heard[WORKERS] = [REPORTS_MAX] of { byte, byte };          /* a successor's: sender, number of a report */

typedef Worker {
    byte coordinator;           /* to which it reports */
    byte sent;                  /* reports */
    byte next;                  /* number of the command that it reads next */
    bool acts;                  /* it coordinates */
    byte successor;             /* to which it has handed over; else NOBODY */
    bool waits;                 /* for that one to answer */
    byte silent;                /* set of workers whose fences this one, a successor, waits for */
    byte members;               /* set of workers; this and what follows is the coordinator's state */
    byte written;               /* commands */
    byte requests;              /* reports without a command yet */
    bool retires                /* a worker was told to leave and has not said goodbye */
};
Worker worker[WORKERS];

byte reports = REPORTS;
byte questions = QUESTIONS;
byte handovers = HANDOVERS;
byte leaves = LEAVES;
bool over;

/* The truth, which nobody sees. */
byte heard_of[WORKERS];         /* worker -> its reports that coordinators have heard */
byte gone;                      /* set of workers */
byte under_way;                 /* messages in all channels */

hidden byte k, n, who;          /* scratch within a step */
hidden byte forwarded;
hidden mtype what;
hidden byte reports_come_in_order, one_coordinator, coordinator_mail_has_a_way, commands_are_consecutive;
hidden byte nobody_writes_to_the_gone, no_report_is_lost, no_request_is_lost;

#define IS_GONE(w) (gone & only(w))
#define COORDINATES(w) (worker[w].acts && worker[w].successor == NOBODY)
#define IS_SUCCESSOR(w) (worker[w].silent > 0 && !worker[w].acts)
#define MAY_HEAR(w) (IS_SUCCESSOR(w) || empty(heard[w]))
#define IS_SENT_NOTHING(w) (empty(MAIL(0, w)) && empty(MAIL(1, w)) && empty(MAIL(2, w)))

#ifdef NO_REST
#define AT_REST(w) true
#else
#define HAS_READ(who, w) (IS_GONE(who) || worker[who].next == worker[w].written)
#define AT_REST(w) (HAS_READ(0, w) && HAS_READ(1, w) && HAS_READ(2, w))
#endif

#ifdef RESUME_EARLY
#define MAY_BEGIN(w) true
#else
#define MAY_BEGIN(w) (worker[w].silent == 0)
#endif

#define IS_DONE(w) (worker[w].acts && worker[w].requests == 0 && !worker[w].retires)
#define OWES_NOTHING(w) (worker[w].successor == NOBODY || worker[w].written + worker[w].requests == 0)
#define AT_END (under_way == 0 && reports + questions + handovers + leaves == 0 && \
    (IS_DONE(0) || IS_DONE(1) || IS_DONE(2)) && OWES_NOTHING(0) && OWES_NOTHING(1) && OWES_NOTHING(2))

#define PACKED(written, requests) ((written) * 16 + (requests))

inline post(from, to, kind, is_forwarded, about, number) {
    nobody_writes_to_the_gone = !IS_GONE(to);
    assert(nobody_writes_to_the_gone);
    MAIL(from, to) ! kind(is_forwarded, about, number);
    under_way++
}

inline tell_members(from, kind, number) {
    k = 0;
    do
    :: k < WORKERS ->
        if
        :: worker[from].members & only(k) -> post(from, k, kind, false, from, number)
        :: else
        fi;
        k++
    :: else -> break
    od;
    skip
}

/* Reports and commands ---------------------------------------------------------------- */

inline report(w, to) {
    printf("worker %d reports %d to worker %d\n", w, worker[w].sent, to);
    post(w, to, REPORT, false, w, worker[w].sent);
    worker[w].sent++
}

inline hear(at, sender, number) {
    printf("worker %d hears report %d of worker %d\n", at, number, sender);
    reports_come_in_order = (number == heard_of[sender]);
    assert(reports_come_in_order);
    heard_of[sender]++;
    worker[at].requests++
}

inline command(at) {
    printf("worker %d writes command %d\n", at, worker[at].written);
    k = 0;
    do
    :: k < WORKERS ->
        if
        :: worker[at].members & only(k) -> CONTROL(at, k) ! worker[at].written; under_way++
        :: else
        fi;
        k++
    :: else -> break
    od;
    worker[at].written++;
    worker[at].requests--
}

inline read_command(w, writer) {
    CONTROL(writer, w) ? n;
    under_way--;
    printf("worker %d reads command %d of worker %d\n", w, n, writer);
    commands_are_consecutive = (n == worker[w].next);
    assert(commands_are_consecutive);
    worker[w].next = n + 1
}

/* The hand-over ----------------------------------------------------------------------- */

inline take_over(w, number) {
    printf("worker %d is at command %d with %d requests\n", w, number / 16, number % 16);
    worker[w].written = number / 16;
#ifdef COUNTER_ANEW
    worker[w].written = 0;
#endif
    worker[w].requests = worker[w].requests + number % 16
}

inline hand_over(w, to) {
    printf("worker %d hands over to worker %d\n", w, to);
    handovers--;
    worker[w].successor = to;
    worker[w].waits = true;
#if defined(STATE_BEHIND)
    n = 0;
#elif defined(REQUESTS_LEFT)
    n = PACKED(worker[w].written, 0);
#else
    n = PACKED(worker[w].written, worker[w].requests);
#endif
    post(w, to, SUCCESSION, false, worker[w].members, n);
#if !defined(KEEPS_ACTING) && !defined(STATE_BEHIND)
    worker[w].written = 0;
    worker[w].requests = 0;
#endif
#ifndef KEEPS_ACTING
    worker[w].acts = false;
#endif
#ifdef EARLY_HANDOVER
    tell_members(w, HANDOVER, to)
#endif
}

inline begin(w) {
    printf("worker %d coordinates\n", w);
    k = 0;
    do
    :: k < WORKERS ->
        one_coordinator = !worker[k].acts;
        assert(one_coordinator);
#ifdef RESUME_EARLY
        do
        :: KEPT(w, k) ? [n] -> KEPT(w, k) ? n; heard[w] ! k, n
        :: else -> break
        od;
#endif
        k++
    :: else -> break
    od;
    worker[w].acts = true
}

/* `what`, number `n` of `who`, has come for the coordinator: it is heard, kept, passed on, or astray. */
inline take(at) {
    if
    :: COORDINATES(at) && what == REPORT -> hear(at, who, n)
#ifdef RESUME_EARLY
    :: COORDINATES(at) && what == FENCE -> worker[at].silent = worker[at].silent & ~only(who)
#endif
    :: IS_SUCCESSOR(at) && what == FENCE ->
        printf("worker %d has the fence of worker %d\n", at, who);
        worker[at].silent = worker[at].silent & ~only(who);
        do
        :: KEPT(at, who) ? [n] -> KEPT(at, who) ? n; heard[at] ! who, n
        :: else -> break
        od;
        if
        :: MAY_BEGIN(at) -> begin(at)
        :: else
        fi
    :: IS_SUCCESSOR(at) && what == REPORT ->
        under_way++;
        if
#ifndef NO_FENCE
        :: !forwarded && (worker[at].silent & only(who)) -> KEPT(at, who) ! n
#endif
        :: else -> heard[at] ! who, n
        fi
    :: worker[at].successor != NOBODY ->
        if
#ifdef NO_FORWARD
        :: what == REPORT -> printf("worker %d drops report %d of worker %d\n", at, n, who)
#endif
        :: else ->
            printf("worker %d passes on the %e of worker %d\n", at, what, who);
            post(at, worker[at].successor, what, true, who, n)
        fi
    :: else ->
        coordinator_mail_has_a_way = false;
        assert(coordinator_mail_has_a_way)
    fi
}

/* Leaving ----------------------------------------------------------------------------- */

inline retire(w, leaver) {
    printf("worker %d lets worker %d leave\n", w, leaver);
    leaves--;
    worker[w].retires = true;
    worker[w].members = worker[w].members & ~only(leaver);
    post(w, leaver, LEAVE, false, w, worker[w].written)
}

inline part(w) {
    printf("worker %d says goodbye\n", w);
    gone = gone | only(w);
    k = 0;
    do
    :: k < WORKERS ->
        nobody_writes_to_the_gone = (empty(MAIL(k, w)) && empty(CONTROL(k, w)));
        assert(nobody_writes_to_the_gone);
        k++
    :: else -> break
    od;
    skip
}

/* What one worker does ---------------------------------------------------------------- */

inline receive(w, sender) {
    MAIL(sender, w) ? what, forwarded, who, n;
    under_way--;
    if
    :: what == REPORT || what == FENCE -> take(w)
    :: what == SUCCESSION ->
        printf("worker %d is to succeed worker %d\n", w, sender);
        worker[w].successor = NOBODY;
        worker[w].members = who;
        worker[w].silent = who;
        take_over(w, n);
        post(w, sender, SUCCEEDING, false, w, 0)
#ifdef STATE_BEHIND
    :: what == STATE -> take_over(w, n)
#endif
    :: what == SUCCEEDING ->
        coordinator_mail_has_a_way = worker[w].waits;
        assert(coordinator_mail_has_a_way);
        worker[w].waits = false;
#ifndef EARLY_HANDOVER
        tell_members(w, HANDOVER, sender)
#endif
    :: what == HANDOVER ->
        printf("worker %d hears that worker %d is the coordinator\n", w, n);
        worker[w].coordinator = n;
#ifdef FENCE_DIRECT
        post(w, n, FENCE, false, w, 0)
#else
        post(w, sender, FENCE, false, w, 0)
#endif
    :: what == QUESTION -> report(w, worker[w].coordinator)
    :: what == LEAVE ->
        post(w, sender, GOODBYE, false, w, 0);
        part(w)
    :: what == GOODBYE -> worker[w].retires = false
    fi
}

/* A worker that is to leave has first read all that it was commanded. */
#define RECEIVE(s) \
    :: d_step { nempty(MAIL(s, w)) && MAY_HEAR(w) && \
                (!MAIL(s, w) ? [LEAVE] || MAIL(s, w) ? [LEAVE, false, s, eval(worker[w].next)]) -> receive(w, s) } \
    :: d_step { nempty(CONTROL(s, w)) -> read_command(w, s) }

#define HAND_OVER_TO(s) \
    :: d_step { COORDINATES(w) && handovers > 0 && !worker[w].retires && w != s && (worker[w].members & only(s)) && \
                AT_REST(w) -> hand_over(w, s) }

#define LET_LEAVE(s) \
    :: d_step { COORDINATES(w) && leaves > 0 && (worker[w].members & only(s)) && worker[s].successor != NOBODY -> \
                retire(w, s) }

#define ASK(s) \
    :: d_step { COORDINATES(w) && questions > 0 && w != s && (worker[w].members & only(s)) -> \
                questions--; post(w, s, QUESTION, false, w, 0) }

proctype run_worker(byte w) {
    do
    :: over || IS_GONE(w) -> break

    RECEIVE(0)
    RECEIVE(1)
    RECEIVE(2)

    :: d_step { reports > 0 && !IS_GONE(w) -> reports--; report(w, worker[w].coordinator) }

    /* What a successor has kept comes before all that comes now. */
    :: d_step { nempty(heard[w]) && !IS_SUCCESSOR(w) ->
        heard[w] ? who, n;
        under_way--;
        what = REPORT;
        forwarded = true;
        take(w) }

    :: d_step { worker[w].acts && worker[w].requests > 0 -> command(w) }

    HAND_OVER_TO(0)
    HAND_OVER_TO(1)
    HAND_OVER_TO(2)

    LET_LEAVE(0)
    LET_LEAVE(1)
    LET_LEAVE(2)

#if QUESTIONS > 0
    ASK(0)
    ASK(1)
    ASK(2)
#endif

#ifdef STATE_BEHIND
    :: d_step { worker[w].successor != NOBODY && worker[w].written + worker[w].requests > 0 ->
        post(w, worker[w].successor, STATE, false, w, PACKED(worker[w].written, worker[w].requests));
        worker[w].written = 0;
        worker[w].requests = 0 }
#endif

#ifdef LEAVES_EARLY
    :: d_step { worker[w].successor != NOBODY && IS_SUCCESSOR(worker[w].successor) && !worker[w].waits && \
                IS_SENT_NOTHING(w) -> part(w) }
#endif
    od
}

init {
    d_step {
        k = 0;
        do
        :: k < WORKERS -> worker[k].successor = NOBODY; k++
        :: else -> break
        od;
        worker[0].acts = true;
        worker[0].members = EVERYBODY
    }
    atomic {
        run run_worker(0);
        run run_worker(1);
        run run_worker(2)
    }
    atomic { AT_END -> over = true }
    d_step {
        k = 0;
        n = 0;
        do
        :: k < WORKERS ->
            no_report_is_lost = (heard_of[k] == worker[k].sent);
            assert(no_report_is_lost);
            n = n + heard_of[k];
            k++
        :: else -> break
        od;
        k = 0;
        do
        :: k < WORKERS ->
            no_request_is_lost = (IS_GONE(k) || worker[k].next == n);
            assert(no_request_is_lost);
            k++
        :: else -> break
        od;
        skip
    }
}

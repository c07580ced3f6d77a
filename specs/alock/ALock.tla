------------------------------- MODULE ALock -------------------------------
(***************************************************************************)
(* ALock: a lock for asymmetric memory. Two cohorts, of threads that reach *)
(* the lock through the NIC and of threads on its node, each have an MCS   *)
(* queue; the heads of the two queues agree by Peterson's algorithm.       *)
(*                                                                         *)
(* After "ALock: Asymmetric Lock Primitive for RDMA Systems" (SPAA 2024).  *)
(* Each action is one access to memory that others see.                    *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Remote,         \* threads on other nodes than the lock's
    Local,          \* threads on the lock's node
    RemoteBudget,   \* how often the remote cohort hands the lock on before it
    LocalBudget,    \* lets the other one in; and the local one
    Mutant          \* what is wrong with the lock: "none", or a mistake

ASSUME Remote \cap Local = {} /\ RemoteBudget > 0 /\ LocalBudget > 0

Threads == Remote \cup Local
Cohorts == {"remote", "local"}
Nobody  == "nobody"

Cohort(t) == IF t \in Remote THEN "remote" ELSE "local"
Other(c)  == IF c = "remote" THEN "local" ELSE "remote"
Budget(c) == IF c = "remote" THEN RemoteBudget ELSE LocalBudget

VARIABLES
    tail,       \* of each cohort: the descriptor that was enqueued last
    victim,     \* the cohort that lets the other one in
    budget,     \* in each descriptor: -1 while it waits to be handed the lock
    next,       \* in each descriptor: who comes behind
    pc,         \* where each thread is
    found,      \* what it found as the tail
    queue,      \* of each cohort, as history: who has enqueued, in order
    overtaken   \* of each cohort, as history: how often the other one has
                \* entered since this one's head has said that it waits

vars == <<tail, victim, budget, next, pc, found, queue, overtaken>>

Init ==
    /\ tail = [c \in Cohorts |-> Nobody]
    /\ victim \in Cohorts
    /\ budget = [t \in Threads |-> -1]
    /\ next = [t \in Threads |-> Nobody]
    /\ pc = [t \in Threads |-> "idle"]
    /\ found = [t \in Threads |-> Nobody]
    /\ queue = [c \in Cohorts |-> <<>>]
    /\ overtaken = [c \in Cohorts |-> 0]

Goes(t, to) == pc' = [pc EXCEPT ![t] = to]

(* A thread wants the lock: its descriptor is its own still.               *)
Begin(t) ==
    /\ pc[t] = "idle"
    /\ budget' = [budget EXCEPT ![t] = -1]
    /\ next' = [next EXCEPT ![t] = Nobody]
    /\ found' = [found EXCEPT ![t] = Nobody]
    /\ Goes(t, "enqueue")
    /\ UNCHANGED <<tail, victim, queue, overtaken>>

(* A local thread exchanges the tail. RDMA has no exchange: a remote one   *)
(* compares and swaps, and has to try again if the tail is another one     *)
(* than it found last.                                                     *)
Enqueue(t) ==
    LET c == Cohort(t)
        own == IF Mutant = "cohort" /\ t \in Local THEN "remote" ELSE c
        was == IF t \in Local THEN tail[own] ELSE found[t]
    IN  /\ pc[t] = "enqueue"
        /\ IF tail[own] = was
           THEN /\ tail' = [tail EXCEPT ![own] = t]
                /\ found' = [found EXCEPT ![t] = was]
                /\ queue' = [queue EXCEPT ![c] = Append(@, t)]
                /\ Goes(t, IF was = Nobody THEN "victim" ELSE "link")
           ELSE /\ found' = [found EXCEPT ![t] = tail[own]]
                /\ UNCHANGED <<tail, queue, pc>>
        /\ UNCHANGED <<victim, budget, next, overtaken>>

(* Who has somebody before it says so there, and waits.                    *)
Link(t) ==
    /\ pc[t] = "link"
    /\ next' = [next EXCEPT ![found[t]] = t]
    /\ Goes(t, "wait")
    /\ UNCHANGED <<tail, victim, budget, found, queue, overtaken>>

(* History is counted as far as it matters.                                *)
Counted(n) == IF n > RemoteBudget + LocalBudget THEN RemoteBudget + LocalBudget + 1 ELSE n

(* Who enters. The other cohort, if its head waits, is overtaken.          *)
Enters(t) ==
    LET other == Other(Cohort(t))
        waits == \E s \in Threads: Cohort(s) = other /\ pc[s] \in {"flag", "turn"}
    IN  /\ Goes(t, "critical")
        /\ overtaken' = [overtaken EXCEPT ![other] = IF waits THEN Counted(@ + 1) ELSE 0, ![Cohort(t)] = 0]

(* The lock was handed over; but a cohort whose budget is spent competes   *)
(* again, and is the victim.                                               *)
Wait(t) ==
    /\ pc[t] = "wait"
    /\ budget[t] >= 0 \/ (Mutant = "barging" /\ tail[Other(Cohort(t))] = Nobody)
    /\ IF budget[t] /= 0
       THEN Enters(t)
       ELSE /\ Goes(t, IF Mutant = "no victim again" THEN "flag" ELSE "victim")
            /\ UNCHANGED overtaken
    /\ UNCHANGED <<tail, victim, budget, next, found, queue>>

(* Peterson's algorithm: the flags are the tails.                          *)
Victim(t) ==
    /\ pc[t] = "victim"
    /\ victim' = IF Mutant = "no fence" THEN victim ELSE Cohort(t)
    /\ Goes(t, "flag")
    /\ UNCHANGED <<tail, budget, next, found, queue, overtaken>>

Flag(t) ==
    /\ pc[t] = "flag"
    /\ Goes(t, IF tail[Other(Cohort(t))] = Nobody THEN "reset" ELSE "turn")
    /\ UNCHANGED <<tail, victim, budget, next, found, queue, overtaken>>

Turn(t) ==
    /\ pc[t] = "turn"
    /\ Goes(t, IF victim /= Cohort(t) THEN "reset" ELSE "flag")
    /\ UNCHANGED <<tail, victim, budget, next, found, queue, overtaken>>

(* Who has won has the whole budget: its descriptor is its own again. (A   *)
(* thread without a fence before its reads writes the victim only now.)    *)
Reset(t) ==
    /\ pc[t] = "reset"
    /\ budget' = [budget EXCEPT ![t] = IF Mutant = "no reset" /\ @ = 0 THEN 0 ELSE Budget(Cohort(t))]
    /\ victim' = IF Mutant = "no fence" THEN Cohort(t) ELSE victim
    /\ Enters(t)
    /\ UNCHANGED <<tail, next, found, queue>>

(* The critical section ends.                                              *)
Leave(t) ==
    /\ pc[t] = "critical"
    /\ Goes(t, "exit")
    /\ queue' = [queue EXCEPT ![Cohort(t)] = Tail(@)]
    /\ UNCHANGED <<tail, victim, budget, next, found, overtaken>>

(* If nobody is behind, the queue is empty; by a compare-and-swap.         *)
Exit(t) ==
    LET own == IF Mutant = "cohort" /\ t \in Local THEN "remote" ELSE Cohort(t)
    IN  /\ pc[t] = "exit"
        /\ IF tail[own] = t
           THEN /\ tail' = [tail EXCEPT ![own] = Nobody]
                /\ Goes(t, "idle")
           ELSE /\ Goes(t, "pass")
                /\ UNCHANGED tail
        /\ UNCHANGED <<victim, budget, next, found, queue, overtaken>>

(* Else the next one, as soon as it has said so, gets what is left.        *)
Pass(t) ==
    /\ pc[t] = "pass"
    /\ next[t] /= Nobody
    /\ budget' = [budget EXCEPT ![next[t]] = IF Mutant = "no budget" THEN Budget(Cohort(t)) ELSE budget[t] - 1]
    /\ Goes(t, "idle")
    /\ UNCHANGED <<tail, victim, next, found, queue, overtaken>>

(* What a thread does once it has begun.                                   *)
Works(t) ==
    \/ Enqueue(t) \/ Link(t) \/ Wait(t) \/ Victim(t) \/ Flag(t) \/ Turn(t)
    \/ Reset(t) \/ Leave(t) \/ Exit(t) \/ Pass(t)

Next == \E t \in Threads: Begin(t) \/ Works(t)

(* Nobody has to want the lock; who does goes on, if he can.               *)
Spec == Init /\ [][Next]_vars /\ \A t \in Threads: WF_vars(Works(t))

-----------------------------------------------------------------------------

TypeOK ==
    /\ tail \in [Cohorts -> Threads \cup {Nobody}]
    /\ victim \in Cohorts
    /\ next \in [Threads -> Threads \cup {Nobody}]
    /\ found \in [Threads -> Threads \cup {Nobody}]
    /\ \A t \in Threads: budget[t] \in -1..Budget(Cohort(t))

(* Two threads are never in the critical section.                          *)
Exclusion == Cardinality({t \in Threads: pc[t] = "critical"}) <= 1

(* In each cohort, who enqueued first is the first to enter.               *)
InOrder ==
    \A t \in Threads: pc[t] = "critical" => Head(queue[Cohort(t)]) = t

(* Once the head of a cohort waits, the other one enters no more often     *)
(* than its budget says.                                                   *)
Bounded == \A c \in Cohorts: overtaken[c] <= Budget(Other(c))

(* Who has enqueued enters; that is, at any time, whoever has. (Before     *)
(* that, others may be faster for ever to change the tail.)                *)
HasEnqueued(t) == pc[t] \in {"link", "wait", "victim", "flag", "turn", "reset"}

NoStarvation == \A t \in Threads: [](HasEnqueued(t) => <>(pc[t] = "critical"))

(* As long as somebody wants the lock, somebody gets it.                   *)
Progress ==
    []((\E t \in Threads: pc[t] = "enqueue") => <>(\E t \in Threads: pc[t] = "critical"))

(* A waiter that comes is not overtaken for ever by a cohort that is never *)
(* empty: as NoStarvation, of the heads alone.                             *)
Fair ==
    \A t \in Threads: [](pc[t] = "turn" => <>(pc[t] = "critical"))

=============================================================================

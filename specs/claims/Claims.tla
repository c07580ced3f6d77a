------------------------------- MODULE Claims -------------------------------
(***************************************************************************)
(* The queue of a lock whose nodes die: an MCS queue, whose head is        *)
(* claimed from the dead. Each living entry knows the one that it found    *)
(* before it, nobody knows more; who is behind the dead looks at the       *)
(* living entries, one after the other, and claims the head if it can be   *)
(* nobody's, by a compare-and-swap of a count.                             *)
(*                                                                         *)
(* Each action is one access to memory that others see. A put lands later, *)
(* in any order with others. The lock's own node does not die.             *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Nodes,      \* the nodes, each as the set of its descriptors
    Mortal,     \* those that may die
    Again,      \* the descriptors that are used twice; the others once
    Begun,      \* whether all are in the queue at first, and some shut out
    Mutant      \* what is wrong with the lock: "none", or a mistake

Ops == UNION Nodes

ASSUME /\ \A m, n \in Nodes: m = n \/ m \cap n = {}
       /\ Mortal \subseteq Nodes /\ Again \subseteq Ops /\ Begun \in BOOLEAN

(* Which descriptors may change places, if they do it together.            *)
Alike ==
    {p \in Permutations(Ops): LET Image(of) == {{p[o]: o \in n}: n \in of}
                              IN  /\ Image(Nodes) = Nodes /\ Image(Mortal) = Mortal
                                  /\ Image({Again}) = {Again}}

(* An operation's name: a descriptor, and which of its uses.               *)
Nobody == <<"nobody", 0>>
Node   == [o \in Ops |-> CHOOSE n \in Nodes: o \in n]
Names  == Ops \X (1..2)

States == {"free", "enqueueing", "queued", "claiming", "leaving"}

VARIABLES
    tail,       \* in the lock's record: the name that was enqueued last
    claims,     \* in the lock's record: how often the head was claimed
    about,      \* in each descriptor: which use it is, and its state
    pred,       \* in each descriptor: the name before it
    next,       \* in each descriptor: the name behind it, once it is told
    grant,      \* in each descriptor: whether it was handed the lock
    flight,     \* puts that have not landed
    node,       \* of each node: "up", "dead", or "out", which is shut out
    pc,         \* where each operation is
    found,      \* what it found as the tail
    look        \* what it has seen of the others

vars == <<tail, claims, about, pred, next, grant, flight, node, pc, found, look>>

words == <<tail, claims, about, pred, next, grant, flight>>

Unread == [use |-> 0, state |-> "free"]

(* What who looks knows: the count and the tail of before, who was shut    *)
(* out before, whom it has not looked at yet, what the others were about   *)
(* at the first look and, of those in the queue, whom they are behind.     *)
Blank == [claims |-> 0, tail |-> Nobody, asked |-> FALSE, out |-> {}, todo |-> {},
          about |-> [o \in Ops |-> Unread], pred |-> [o \in Ops |-> Nobody]]

Empty ==
    /\ tail = Nobody
    /\ about = [o \in Ops |-> Unread]
    /\ pred = [o \in Ops |-> Nobody]
    /\ next = [o \in Ops |-> Nobody]
    /\ node = [n \in Nodes |-> "up"]
    /\ pc = [o \in Ops |-> "idle"]

(* All wait, in any order; no claim is far.                                *)
Full ==
    LET count == Cardinality(Ops)
    IN  \E order \in [1..count -> Ops], gone \in SUBSET Mortal:
            LET At(o) == CHOOSE k \in 1..count: order[k] = o
                Is(k) == IF k \in 1..count THEN <<order[k], 1>> ELSE Nobody
            IN  /\ \A o \in Ops: \E k \in 1..count: order[k] = o
                /\ tail = Is(count)
                /\ about = [o \in Ops |-> [use |-> 1, state |-> "queued"]]
                /\ pred = [o \in Ops |-> Is(At(o) - 1)]
                /\ next = [o \in Ops |-> IF Node[o] \in gone THEN Nobody ELSE Is(At(o) + 1)]
                /\ node = [n \in Nodes |-> IF n \in gone THEN "out" ELSE "up"]
                /\ pc = [o \in Ops |-> IF Node[o] \in gone THEN "gone" ELSE IF At(o) = 1 THEN "critical" ELSE "wait"]

Init ==
    /\ IF Begun THEN Full ELSE Empty
    /\ claims = 0
    /\ grant = [o \in Ops |-> FALSE]
    /\ flight = {}
    /\ found = [o \in Ops |-> Nobody]
    /\ look = [o \in Ops |-> Blank]

Goes(o, to) == pc' = [pc EXCEPT ![o] = to]
Says(o, state) == about' = [about EXCEPT ![o].state = state]
Name(o) == <<o, about[o].use>>
Lives(o) == node[Node[o]] = "up"

(* Whose memory is gone takes no puts.                                     *)
Put(o, word, name, value) ==
    flight' = IF Lives(name[1])
              THEN flight \cup {[from |-> o, word |-> word, to |-> name, value |-> value]}
              ELSE flight

(* An operation begins: nobody writes to its descriptor any more.          *)
Begin(o) ==
    /\ pc[o] = "idle"
    /\ about[o].use < IF o \in Again THEN 2 ELSE 1
    /\ about' = [about EXCEPT ![o] = [use |-> @.use + 1, state |-> "enqueueing"]]
    /\ Goes(o, "enqueue")
    /\ UNCHANGED <<tail, claims, pred, next, grant, flight, node, found, look>>

(* One attempt; the answer comes later.                                    *)
Enqueue(o) ==
    /\ pc[o] = "enqueue"
    /\ IF tail = found[o]
       THEN tail' = Name(o) /\ Goes(o, "settle") /\ UNCHANGED found
       ELSE found' = [found EXCEPT ![o] = tail] /\ UNCHANGED <<tail, pc>>
    /\ UNCHANGED <<claims, about, pred, next, grant, flight, node, look>>

(* It says that it is in the queue, and behind whom.                       *)
Settle(o) ==
    /\ pc[o] = "settle"
    /\ pred' = [pred EXCEPT ![o] = found[o]]
    /\ found' = [found EXCEPT ![o] = Nobody]
    /\ Says(o, "queued")
    /\ Goes(o, IF found[o] = Nobody THEN "critical" ELSE "tell")
    /\ UNCHANGED <<tail, claims, next, grant, flight, node, look>>

Tell(o) ==
    /\ pc[o] = "tell"
    /\ Put(o, "next", pred[o], Name(o))
    /\ Goes(o, "wait")
    /\ UNCHANGED <<tail, claims, about, pred, next, grant, node, found, look>>

Wait(o) ==
    /\ pc[o] = "wait"
    /\ grant[o]
    /\ Goes(o, "critical")
    /\ UNCHANGED <<words, node, found, look>>

(* The descriptor is free.                                                 *)
Over(o) ==
    /\ Says(o, "free")
    /\ pred' = [pred EXCEPT ![o] = Nobody]
    /\ next' = [next EXCEPT ![o] = Nobody]
    /\ grant' = [grant EXCEPT ![o] = FALSE]
    /\ Goes(o, "idle")

HandOver(o) ==
    /\ next[o] /= Nobody
    /\ Put(o, "grant", next[o], Nobody)
    /\ Over(o)
    /\ UNCHANGED tail

(* The critical section ends. Who knows who is behind hands over; else the *)
(* queue is empty, by a compare-and-swap; or there is somebody behind.     *)
Leave(o) ==
    /\ pc[o] = "critical"
    /\ \/ HandOver(o)
       \/ /\ next[o] = Nobody
          /\ IF tail = Name(o)
             THEN tail' = Nobody /\ Over(o)
             ELSE /\ Says(o, "leaving")
                  /\ Goes(o, "pass")
                  /\ UNCHANGED <<tail, pred, next, grant>>
          /\ UNCHANGED flight
    /\ UNCHANGED <<claims, node, found, look>>

Pass(o) ==
    /\ pc[o] = "pass"
    /\ HandOver(o)
    /\ UNCHANGED <<claims, node, found, look>>

-----------------------------------------------------------------------------
(* Claims.                                                                 *)

(* Whose nodes nothing can come from any more.                             *)
Out == {n \in Nodes: node[n] = "out" \/ (Mutant = "early" /\ node[n] = "dead")}

(* Whom to look at: who is not known to be shut out.                       *)
Others(o, out) == IF Mutant = "blind" THEN {} ELSE {p \in Ops \ {o}: Node[p] \notin out}

Looks(o, l) == look' = [look EXCEPT ![o] = l]

(* The look has ended, one way or the other.                               *)
Ends(o, to) == Goes(o, to) /\ Looks(o, Blank)

(* It has waited for long, behind one that lives no more.                  *)
Misses(o) ==
    /\ pc[o] = "wait"
    /\ Mutant /= "no claim"
    /\ ~grant[o]
    /\ pred[o] /= Nobody /\ ~Lives(pred[o][1])
    /\ Goes(o, "start")
    /\ UNCHANGED <<words, node, found, look>>

(* What is known of the others may be old: it is asked for now, or later.  *)
Start(o) ==
    /\ pc[o] = "start"
    /\ Node[pred[o][1]] \in Out
    /\ \/ Looks(o, [Blank EXCEPT !.claims = claims, !.asked = TRUE, !.out = Out])
       \/ Looks(o, [Blank EXCEPT !.claims = claims])
    /\ Goes(o, "tail")
    /\ UNCHANGED <<words, node, found>>

LookAtTail(o) ==
    /\ pc[o] = "tail"
    /\ Looks(o, [look[o] EXCEPT !.tail = tail])
    /\ Goes(o, "ask")
    /\ UNCHANGED <<words, node, found>>

(* Before anything is read. Who is dead and not shut out may be taken for  *)
(* a living one.                                                           *)
Ask(o) ==
    LET out == IF look[o].asked THEN look[o].out ELSE Out
    IN  /\ pc[o] = "ask"
        /\ Looks(o, [look[o] EXCEPT !.asked = TRUE, !.out = out, !.todo = Others(o, out)])
        /\ Goes(o, IF Others(o, out) = {} THEN "decide" ELSE "first")
        /\ UNCHANGED <<words, node, found>>

(* Who has left, but for somebody behind it, looks whether that is dead.   *)
StartLast(o) ==
    /\ pc[o] = "pass"
    /\ Mutant /= "no end"
    /\ next[o] = Nobody
    /\ Out /= {}
    /\ Looks(o, [Blank EXCEPT !.asked = TRUE, !.out = Out, !.todo = Others(o, Out)])
    /\ Goes(o, IF Others(o, Out) = {} THEN "decide" ELSE "first")
    /\ UNCHANGED <<words, node, found>>

IsLast(o) == about[o].state = "leaving"
Back(o) == IF IsLast(o) THEN "pass" ELSE "wait"

(* The first look at another: what it is about.                            *)
First(o, p) ==
    LET l == look[o]
        is == IF about[p].state = "leaving" THEN Unread ELSE about[p]
        all == [l.about EXCEPT ![p] = IF is.state = "free" THEN Unread ELSE is]
        more == l.todo \ {p}
        second == {q \in Ops: all[q] /= Unread}
    IN  /\ pc[o] = "first"
        /\ p \in l.todo
        /\ Looks(o, [l EXCEPT !.about = all, !.todo = IF more = {} THEN second ELSE more])
        /\ Goes(o, IF more /= {} THEN "first" ELSE IF second = {} THEN "decide" ELSE "second")
        /\ UNCHANGED <<words, node, found>>

(* The second: behind whom it is, if it is about the same still. Who may   *)
(* be at the head, or has not seen yet whether it is in the queue, ends    *)
(* the look. (That is one access, as good as several if what it is about   *)
(* is read last. Torn, the rest may be of the descriptor's next use.)      *)
Second(o, p) ==
    LET l == look[o]
        more == l.todo \ {p}
        goes == IF more = {} THEN "decide" ELSE "second"
        isOver == about[p].use /= l.about[p].use \/ about[p].state = "free"
        isWhole == /\ about[p] = l.about[p]
                   /\ about[p].state = "queued" \/ (IsLast(o) /\ about[p].state = "claiming")
        tears == Mutant = "torn" /\ l.about[p].state /= "seen"
    IN  /\ pc[o] = "second"
        /\ p \in l.todo
        /\ IF isOver /\ l.about[p].state /= "seen"
           THEN Looks(o, [l EXCEPT !.about[p] = Unread, !.todo = more]) /\ Goes(o, goes)
           ELSE IF tears /\ isWhole
           THEN Looks(o, [l EXCEPT !.about[p].state = "seen"]) /\ UNCHANGED pc
           ELSE IF ~isWhole /\ l.about[p].state /= "seen"
           THEN Ends(o, Back(o))
           ELSE IF IsLast(o)
           THEN IF pred[p] = Name(o)
                THEN Ends(o, "pass")
                ELSE Looks(o, [l EXCEPT !.about[p] = Unread, !.todo = more]) /\ Goes(o, goes)
           ELSE IF grant[p] \/ pred[p] = Nobody
                THEN Ends(o, "wait")
                ELSE Looks(o, [l EXCEPT !.pred[p] = pred[p], !.todo = more]) /\ Goes(o, goes)
        /\ UNCHANGED <<words, node, found>>

(* The memory of a node that is no longer up can be read, or not.          *)
Fails(o) ==
    /\ pc[o] \in {"first", "second"}
    /\ \E p \in look[o].todo: ~Lives(p)
    /\ Ends(o, Back(o))
    /\ UNCHANGED <<words, node, found>>

(* Of the entries that were seen, those that are behind somebody who is    *)
(* shut out; and the one of them that a chain begins with.                 *)
Seen(o) == {<<p, look[o].about[p].use>>: p \in {q \in Ops: look[o].pred[q] /= Nobody}} \cup {Name(o)}
Behind(o, name) == IF name[1] = o THEN pred[o] ELSE look[o].pred[name[1]]

RECURSIVE Beginning(_, _, _)
Beginning(o, out, name) ==
    IF name \notin Seen(o) THEN Nobody
    ELSE IF Node[Behind(o, name)[1]] \in out THEN name
    ELSE Beginning(o, out, Behind(o, name))

(* The chain that holds the tail comes last. While the tail is one of the  *)
(* dead, no living one can empty it.                                       *)
MayClaim(o) ==
    LET out == IF Mutant = "asked late" THEN Out ELSE look[o].out
        all == {Beginning(o, out, name): name \in Seen(o)}
        last == look[o].tail
    IN  \/ Mutant = "blind"
        \/ /\ Nobody \notin all
           /\ \/ Mutant = "tail first"
              \/ last /= Nobody /\ Node[last[1]] \in out
              \/ /\ Beginning(o, out, last) /= Nobody
                 /\ Beginning(o, out, last) /= Name(o) \/ all = {Name(o)}

(* It says so before it claims: whoever sees the new count sees this, or   *)
(* the grant.                                                              *)
Decide(o) ==
    /\ pc[o] = "decide" /\ ~IsLast(o)
    /\ IF ~grant[o] /\ MayClaim(o)
       THEN /\ Says(o, IF Mutant = "silent" THEN "queued" ELSE "claiming")
            /\ Goes(o, "claim")
            /\ Looks(o, [Blank EXCEPT !.claims = look[o].claims])
       ELSE Ends(o, "wait") /\ UNCHANGED about
    /\ UNCHANGED <<tail, claims, pred, next, grant, flight, node, found>>

(* The compare-and-swap of the count, which may be another one.            *)
Claim(o) ==
    /\ pc[o] = "claim"
    /\ IF claims = look[o].claims \/ Mutant = "no count"
       THEN claims' = claims + 1 /\ Ends(o, "claimed") /\ UNCHANGED about
       ELSE Says(o, "queued") /\ Ends(o, "wait") /\ UNCHANGED claims
    /\ UNCHANGED <<tail, pred, next, grant, flight, node, found>>

Claimed(o) ==
    /\ pc[o] = "claimed"
    /\ grant' = [grant EXCEPT ![o] = TRUE]
    /\ Says(o, "queued")
    /\ Goes(o, "wait")
    /\ UNCHANGED <<tail, claims, pred, next, flight, node, found, look>>

(* Nobody living is behind it: what is there is dead.                      *)
Last(o) ==
    /\ \/ pc[o] = "decide" /\ IsLast(o)
       \/ pc[o] = "pass" /\ Mutant = "hasty end"
    /\ look' = [look EXCEPT ![o] = Blank]
    /\ \/ HandOver(o)
       \/ next[o] = Nobody /\ Over(o) /\ UNCHANGED <<tail, flight>>
    /\ UNCHANGED <<claims, node, found>>

-----------------------------------------------------------------------------

Land(m) ==
    /\ LET o == m.to[1]
       IN  IF m.word = "next"
           THEN next' = [next EXCEPT ![o] = m.value] /\ UNCHANGED grant
           ELSE grant' = [grant EXCEPT ![o] = TRUE] /\ UNCHANGED next
    /\ flight' = flight \ {m}
    /\ UNCHANGED <<tail, claims, about, pred, node, pc, found, look>>

(* Its operations stop. (One that is taken for dead and runs on does what  *)
(* one would that died later.) What is put to it goes nowhere.             *)
Die(n) ==
    /\ node[n] = "up"
    /\ node' = [node EXCEPT ![n] = "dead"]
    /\ pc' = [o \in Ops |-> IF o \in n /\ pc[o] /= "critical" THEN "gone" ELSE pc[o]]
    /\ next' = [o \in Ops |-> IF o \in n THEN Nobody ELSE next[o]]
    /\ found' = [o \in Ops |-> IF o \in n THEN Nobody ELSE found[o]]
    /\ look' = [o \in Ops |-> IF o \in n THEN Blank ELSE look[o]]
    /\ flight' = {m \in flight: m.to[1] \notin n}
    /\ UNCHANGED <<tail, claims, about, pred, grant>>

(* What it has put has landed, or never will.                              *)
ShutOut(n) ==
    /\ node[n] = "dead"
    /\ node' = [node EXCEPT ![n] = "out"]
    /\ pc' = [o \in Ops |-> IF o \in n THEN "gone" ELSE pc[o]]
    /\ flight' = {m \in flight: m.from \notin n}
    /\ UNCHANGED <<tail, claims, about, pred, next, grant, found, look>>

(* What a living operation does once it has begun.                         *)
Works(o) ==
    /\ Lives(o)
    /\ \/ Enqueue(o) \/ Settle(o) \/ Tell(o) \/ Wait(o) \/ Leave(o) \/ Pass(o)
       \/ Misses(o) \/ Start(o) \/ LookAtTail(o) \/ Ask(o) \/ StartLast(o)
       \/ (\E p \in Ops: First(o, p) \/ Second(o, p)) \/ Fails(o)
       \/ Decide(o) \/ Claim(o) \/ Claimed(o) \/ Last(o)

Lands == \E m \in flight: Land(m)
Next ==
    \/ \E o \in Ops: (Lives(o) /\ Begin(o)) \/ Works(o)
    \/ Lands
    \/ \E n \in Mortal: Die(n) \/ ShutOut(n)

(* Nobody has to want the lock, and nobody has to die.                     *)
Spec ==
    /\ Init /\ [][Next]_vars
    /\ \A o \in Ops: WF_vars(Works(o))
    /\ WF_vars(Lands)
    /\ \A n \in Mortal: WF_vars(ShutOut(n))

-----------------------------------------------------------------------------

TypeOK ==
    /\ tail \in Names \cup {Nobody}
    /\ claims \in Nat
    /\ about \in [Ops -> [use: 0..2, state: States]]
    /\ pred \in [Ops -> Names \cup {Nobody}]
    /\ next \in [Ops -> Names \cup {Nobody}]
    /\ grant \in [Ops -> BOOLEAN]
    /\ node \in [Nodes -> {"up", "dead", "out"}]

(* Two never have the lock. Who is dead has it until it is shut out.       *)
Exclusion == Cardinality({o \in Ops: pc[o] = "critical"}) <= 1

(* Who has enqueued and not left.                                          *)
Waits(o) == pc[o] \notin {"idle", "enqueue", "critical", "gone"} /\ ~IsLast(o)

(* The tail is not emptied while others are in the queue.                  *)
NotEmptied == tail = Nobody => \A o \in Ops: Lives(o) => ~Waits(o) /\ pc[o] /= "critical"

(* Nobody writes to a descriptor that is not, or no longer, what he means. *)
NotReused == \A m \in flight: m.to = Name(m.to[1]) /\ about[m.to[1]].state /= "free"

(* Who has enqueued gets the lock, if he lives.                            *)
NoStarvation == \A o \in Ops: [](Waits(o) => <>(pc[o] = "critical" \/ ~Lives(o)))

(* Who has left is free in the end, whoever is behind it.                  *)
Freed == \A o \in Ops: [](about[o].state = "leaving" => <>(about[o].state = "free" \/ ~Lives(o)))

=============================================================================

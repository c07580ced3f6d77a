--------------------------------- MODULE Mu ---------------------------------
(***************************************************************************)
(* The replicated log: how its leader changes, and how it decides entries. *)
(*                                                                         *)
(* Each replica has a log in its own memory. One node may write there: the *)
(* candidate or leader that the replica has promised a ballot. A put that  *)
(* is posted lands later, in the order of its queue pair; a revocation     *)
(* ends what has not landed, and may cut a put into pieces.                *)
(*                                                                         *)
(* A node that has died takes no more steps, and its log is not read. That *)
(* is a behaviour of the nodes in which nothing more is done by one or     *)
(* with it, so deaths need no action. A stopped leader that goes on is one *)
(* that takes its next step late.                                          *)
(*                                                                         *)
(* A node may come back in the place of a dead one, with an empty log and  *)
(* no promise. It has no vote until a leader has brought it all entries.   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Replicas,   \* the nodes, each with a replica
    Ballots,    \* how many ballots there are
    Length,     \* how many entries the log has at most
    Returns,    \* how many nodes die and come back, one after the other
    Mutant      \* what is wrong with the protocol: "none", or a mistake

Alike == Permutations(Replicas)

Majority == Cardinality(Replicas) \div 2 + 1
Nobody   == "nobody"
Indices  == 1..Length

(* A slot: an entry, named by the ballot of its proposer, and the highest  *)
(* ballot with which it is accepted. A proposer proposes one entry with a  *)
(* ballot at an index.                                                     *)
Empty == [by |-> 0, ballot |-> 0]
Torn  == [by |-> -1, ballot |-> 0]
Entry(by, ballot) == [by |-> by, ballot |-> ballot]
IsWhole(slot) == slot.by > 0

(* What a candidate knows of another replica: how many right entries it    *)
(* has, or no grant, or a grant and nothing more.                          *)
No      == -2
Granted == -1

VARIABLES
    owner,      \* of each ballot: the node that has asked with it
    promised,   \* of each replica: the highest ballot that it has promised
    right,      \* of each replica: the other nodes that may write its log
    log,        \* of each replica: its slots
    commit,     \* of each replica: entries that are decided, as it was told
    flight,     \* by sender and replica: puts that have not landed
    phase,      \* of each node with the ballot that it has promised itself
    tail,       \* of each node that leads: the entries in its log
    has,        \* of each node: what it knows of the others
    follows,    \* of each node: replicas that are up to date
    late,       \* puts that a stopped thread has still to post (a mutant)
    back,       \* of each replica: "never", or how far it has come back
    told,       \* of each node: the ballot that it has told one that is away
    proposed,   \* all entries that were proposed, with their indices
    decided,    \* all that a leader has taken for decided, and its ballot
    refused     \* those of which a proposer was told that they never are

vars == <<owner, promised, right, log, commit, flight, phase, tail, has, follows, late, back, told, proposed, decided,
          refused>>

ghosts == <<proposed, decided, refused>>

coming == <<back, told>>

Nothing == [r \in Replicas |-> No]

(* A leader has the first ballot, and all follow it.                       *)
Init ==
    \E first \in Replicas:
        /\ owner = [b \in 1..Ballots |-> IF b = 1 THEN first ELSE Nobody]
        /\ promised = [r \in Replicas |-> 1]
        /\ right = [r \in Replicas |-> {first} \ {r}]
        /\ log = [r \in Replicas |-> [i \in Indices |-> Empty]]
        /\ commit = [r \in Replicas |-> 0]
        /\ flight = [c \in Replicas |-> [r \in Replicas |-> <<>>]]
        /\ phase = [c \in Replicas |-> IF c = first THEN "leads" ELSE "none"]
        /\ tail = [c \in Replicas |-> 0]
        /\ has = [c \in Replicas |-> IF c = first THEN [r \in Replicas |-> IF r = c THEN No ELSE 0] ELSE Nothing]
        /\ follows = [c \in Replicas |-> IF c = first THEN Replicas \ {c} ELSE {}]
        /\ late = {}
        /\ back = [r \in Replicas |-> "never"]
        /\ told = [r \in Replicas |-> 0]
        /\ proposed = {}
        /\ decided = {}
        /\ refused = {}

(* A replica that is "away" has lost its memory; one that is "empty" has   *)
(* promised a ballot again, and is to be brought the entries.              *)
Votes(r) == back[r] \in {"never", "votes"}

(* The replicas that have granted a candidate the right, and itself.       *)
Quorum(c) == {c} \cup {r \in Replicas: has[c][r] /= No /\ Votes(r)}

(* Puts, with the ballot of their sender.                                  *)
Op(kind, i, entry, ballot) == [kind |-> kind, at |-> i, entry |-> entry, ballot |-> ballot, spoils |-> FALSE]
Put(i, entry, ballot)      == Op("put", i, entry, ballot)
Over(i, entry, ballot)     == [Put(i, entry, ballot) EXCEPT !.spoils = Mutant /= "no spoiling"]
Raise(i, entry, ballot)    == Op("raise", i, entry, ballot)
Clear(i, ballot)           == Op("clear", i, Empty, ballot)
Word(n, ballot)            == Op("word", n, Empty, ballot)

(* What a put that was cut short may leave in a slot. Its words land in    *)
(* any order. The word with the ballot may come first, and then what was   *)
(* there passes for accepted with it, unless its checksum is spoilt first. *)
Pieces(op, slot) ==
    CASE op.kind = "put" ->
            {slot, Torn, op.entry}
                \cup IF IsWhole(slot) /\ ~op.spoils THEN {Entry(slot.by, op.entry.ballot)} ELSE {}
      [] op.kind = "raise" -> {slot, op.entry}
      [] op.kind = "clear" -> {slot, Empty}

(* A replica revokes the rights of all. What is under way lands or not.    *)
(* (A word, and what is behind the first operation, could have landed      *)
(* before.)                                                                *)
Revoke(r) ==
    LET from == {c \in right[r]: flight[c][r] /= <<>>}
    IN  /\ flight' = [c \in Replicas |-> [flight[c] EXCEPT ![r] = <<>>]]
        /\ IF from = {} THEN UNCHANGED log
           ELSE \E c \in from:
                    LET op == Head(flight[c][r])
                    IN  IF op.kind = "word" THEN UNCHANGED log
                        ELSE \E slot \in Pieces(op, log[r][op.at]): log' = [log EXCEPT ![r][op.at] = slot]

-----------------------------------------------------------------------------
(* The change of the leader.                                               *)

(* A node asks to lead with a ballot of its own. It promises it itself:    *)
(* it leads no longer with an earlier one.                                 *)
Ask(c, b) ==
    /\ Votes(c)
    /\ owner[b] = Nobody
    /\ b > promised[c]
    /\ owner' = [owner EXCEPT ![b] = c]
    /\ promised' = [promised EXCEPT ![c] = b]
    /\ right' = [right EXCEPT ![c] = {}]
    /\ Revoke(c)
    /\ phase' = [phase EXCEPT ![c] = "asks"]
    /\ tail' = [tail EXCEPT ![c] = 0]
    /\ has' = [has EXCEPT ![c] = Nothing]
    /\ follows' = [follows EXCEPT ![c] = {}]
    /\ UNCHANGED <<commit, late, ghosts>>

(* A replica sees the request, and promises the ballot. It revokes the     *)
(* rights of all, gives the right to the candidate, and tells it.          *)
Grant(r, b) ==
    LET c == owner[b]
    IN  /\ c \notin {Nobody, r}
        /\ back[r] /= "away"
        /\ b > promised[r] \/ (Mutant = "lower ballot" /\ b /= promised[r])
        /\ promised' = [promised EXCEPT ![r] = b]
        /\ IF Mutant = "no revoke"
           THEN right' = [right EXCEPT ![r] = @ \cup {c}] /\ UNCHANGED <<log, flight>>
           ELSE right' = [right EXCEPT ![r] = {c}] /\ Revoke(r)
        /\ phase' = [phase EXCEPT ![r] = "none"]
        /\ tail' = [tail EXCEPT ![r] = 0]
        /\ has' = [has EXCEPT ![r] = Nothing, ![c][r] = IF promised[c] = b THEN Granted ELSE @]
        /\ follows' = [follows EXCEPT ![r] = {}]
        /\ UNCHANGED <<owner, commit, late, ghosts>>

(* A follower is dropped, and asked for the right anew. (The one mutant    *)
(* that needs five replicas does without.)                                 *)
Again(c, r) ==
    /\ phase[c] /= "none"
    /\ Mutant /= "refused early"
    /\ back[r] /= "away"
    /\ has[c][r] > Granted
    /\ promised[r] = promised[c]
    /\ Revoke(r)
    /\ has' = [has EXCEPT ![c][r] = Granted]
    /\ follows' = [follows EXCEPT ![c] = @ \ {r}]
    /\ UNCHANGED <<owner, promised, right, commit, phase, tail, late, ghosts>>

(* With the grants of a majority, the candidate copies what is decided.    *)
Copy(c) ==
    /\ phase[c] = "asks"
    /\ Cardinality(Quorum(c)) >= Majority
    /\ \E from \in Quorum(c):
        /\ \A q \in Quorum(c): commit[q] <= commit[from]
        /\ log' = [log EXCEPT ![c] = [i \in Indices |-> IF i \in commit[c] + 1..commit[from] THEN log[from][i] ELSE @[i]]]
        /\ commit' = [commit EXCEPT ![c] = commit[from]]
        /\ tail' = [tail EXCEPT ![c] = commit[from]]
    /\ phase' = [phase EXCEPT ![c] = "adopts"]
    /\ UNCHANGED <<owner, promised, right, flight, has, follows, late, ghosts>>

(* It adopts the entry with the highest ballot, index by index.            *)
Adopt(c) ==
    LET i == tail[c] + 1
        IsFound(slot) == IsWhole(slot) \/ (slot = Torn /\ Mutant = "torn")
        found == IF i > Length THEN {} ELSE {s \in {log[q][i]: q \in Quorum(c)}: IsFound(s)}
    IN  /\ phase[c] = "adopts"
        /\ Cardinality(Quorum(c)) >= Majority
        /\ IF found = {} \/ Mutant = "no adoption"
           THEN phase' = [phase EXCEPT ![c] = "confirms"] /\ UNCHANGED <<log, tail>>
           ELSE \E s \in found:
                /\ \A other \in found: other.ballot <= s.ballot \/ Mutant = "any adoption"
                /\ log' = [log EXCEPT ![c][i] = Entry(s.by, promised[c])]
                /\ tail' = [tail EXCEPT ![c] = i]
                /\ UNCHANGED phase
        /\ UNCHANGED <<owner, promised, right, commit, flight, has, follows, late, ghosts>>

(* A replica still has an undecided entry where the next one comes.        *)
IsStale(c, r) ==
    /\ tail[c] < Length
    /\ IsWhole(log[r][tail[c] + 1])
    /\ Mutant /= "stale next"

(* It brings a replica that has granted the right one step further. All of *)
(* the step before has landed. (The read and the post are one: nobody else *)
(* may write there.)                                                       *)
Bring(c, r) ==
    LET i == has[c][r] + 1
        there == log[r][i]
        mine == log[c][i]
        Posts(op) == flight' = [flight EXCEPT ![c][r] = <<op>>] /\ UNCHANGED has
        Has(n) == has' = [has EXCEPT ![c][r] = n] /\ UNCHANGED flight
    IN  /\ phase[c] = "leads" \/ (phase[c] = "confirms" /\ Votes(r))
        /\ has[c][r] /= No /\ r \notin follows[c]
        /\ c \in right[r] /\ flight[c][r] = <<>>
        /\ IF has[c][r] = Granted THEN commit[r] <= tail[c] /\ Has(commit[r])
           ELSE IF i <= tail[c]
           THEN IF there.by = mine.by /\ there.ballot >= mine.ballot THEN Has(i)
                ELSE IF there.by = mine.by /\ Mutant /= "again in full" THEN Posts(Raise(i, mine, promised[c]))
                ELSE Posts(Over(i, mine, promised[c]))
           ELSE IF IsStale(c, r) THEN Posts(Clear(i, promised[c]))
           ELSE commit[r] < commit[c] /\ Posts(Word(commit[c], promised[c]))
        /\ UNCHANGED <<owner, promised, right, log, commit, phase, tail, follows, late, ghosts>>

(* The replica has the same entries, and is told what is decided. One that *)
(* has come back has a vote from then on.                                  *)
Follow(c, r) ==
    /\ phase[c] = "leads" \/ (phase[c] = "confirms" /\ Votes(r))
    /\ r \notin follows[c]
    /\ c \in right[r] /\ flight[c][r] = <<>>
    /\ has[c][r] = tail[c] /\ ~IsStale(c, r)
    /\ IF phase[c] = "leads" THEN commit[r] = commit[c] ELSE commit[r] >= commit[c]
    /\ follows' = [follows EXCEPT ![c] = @ \cup {r}]
    /\ back' = [back EXCEPT ![r] = IF @ = "empty" THEN "votes" ELSE @]
    /\ UNCHANGED <<owner, promised, right, log, commit, flight, phase, tail, has, late, told, ghosts>>

(* A majority has the same entries: they are decided, and it leads. If it  *)
(* had proposed one earlier where there is none now, its proposer may take *)
(* that for lost (a mutant).                                               *)
Lead(c) ==
    /\ phase[c] = "confirms"
    /\ Cardinality(follows[c]) + 1 >= Majority
    /\ commit' = [commit EXCEPT ![c] = tail[c]]
    /\ phase' = [phase EXCEPT ![c] = "leads"]
    /\ follows' = [follows EXCEPT ![c] = {}]
    /\ decided' = decided \cup {<<i, log[c][i].by, promised[c]>>: i \in commit[c] + 1..tail[c]}
    /\ refused' = IF Mutant = "refused early"
                  THEN refused \cup {e \in proposed: owner[e[2]] = c /\ e[1] > tail[c]}
                  ELSE refused
    /\ UNCHANGED <<owner, promised, right, log, flight, tail, has, late, proposed>>

-----------------------------------------------------------------------------
(* Entries.                                                                *)

Sent(c, to, op) == [flight EXCEPT ![c] = [r \in Replicas |-> IF r \in to /\ c \in right[r] THEN Append(@[r], op) ELSE @[r]]]

(* Its proposer is stopped between the look at its term and a post.        *)
IsStopped(c) == \E post \in late: post[1] = c

(* One at a time. The leader stores the entry and posts the puts in one    *)
(* critical section, which also looks whether it leads.                    *)
Propose(c) ==
    LET i == tail[c] + 1
        op == Put(i, Entry(promised[c], promised[c]), promised[c])
    IN  /\ phase[c] = "leads" /\ ~IsStopped(c)
        /\ tail[c] = commit[c] /\ i <= Length
        /\ Cardinality(follows[c]) + 1 >= Majority
        /\ log' = [log EXCEPT ![c][i] = op.entry]
        /\ tail' = [tail EXCEPT ![c] = i]
        /\ proposed' = proposed \cup {<<i, promised[c]>>}
        /\ IF Mutant = "late post"
           THEN late' = late \cup {<<c, r, op>>: r \in follows[c]} /\ UNCHANGED flight
           ELSE flight' = Sent(c, follows[c], op) /\ UNCHANGED late
        /\ UNCHANGED <<owner, promised, right, commit, phase, has, follows, decided, refused>>

PostLate(post) ==
    /\ flight' = Sent(post[1], {post[2]}, post[3])
    /\ late' = late \ {post}
    /\ UNCHANGED <<owner, promised, right, log, commit, phase, tail, has, follows, ghosts>>

(* A put lands. If the sender has the same ballot still, it gets to know,  *)
(* by a get behind the put.                                                *)
Land(c, r) ==
    LET op == Head(flight[c][r])
    IN  /\ flight[c][r] /= <<>>
        /\ flight' = [flight EXCEPT ![c][r] = Tail(@)]
        /\ IF op.kind = "word"
           THEN commit' = [commit EXCEPT ![r] = op.at] /\ UNCHANGED log
           ELSE log' = [log EXCEPT ![r][op.at] = op.entry] /\ UNCHANGED commit
        /\ has' = IF op.kind \in {"put", "raise"} /\ op.ballot = promised[c] /\ has[c][r] = op.at - 1
                  THEN [has EXCEPT ![c][r] = op.at]
                  ELSE has
        /\ UNCHANGED <<owner, promised, right, phase, tail, follows, late, ghosts>>

(* A majority has the entry.                                               *)
Decide(c) ==
    LET have == {r \in follows[c]: has[c][r] >= tail[c] \/ Mutant = "no flush"}
        needed == IF Mutant = "minority" THEN Majority - 1 ELSE Majority
    IN  /\ phase[c] = "leads" /\ ~IsStopped(c)
        /\ commit[c] < tail[c]
        /\ Cardinality(have) + 1 >= needed
        /\ commit' = [commit EXCEPT ![c] = tail[c]]
        /\ decided' = decided \cup {<<tail[c], log[c][tail[c]].by, promised[c]>>}
        /\ flight' = Sent(c, follows[c], Word(tail[c], promised[c]))
        /\ UNCHANGED <<owner, promised, right, log, phase, tail, has, follows, late, proposed, refused>>

-----------------------------------------------------------------------------
(* A replica that comes back.                                              *)

(* The node at r dies, and the memory of its replica is lost. Another one  *)
(* is started there. What the earlier one has put has landed, or was cut   *)
(* short by a revocation: none reads what it could still change. The       *)
(* others do not know yet, and may count what the earlier one had.         *)
Return(r) ==
    /\ back[r] = "never"
    /\ Cardinality({q \in Replicas: back[q] /= "never"}) < Returns
    /\ \A q \in Replicas: Votes(q)
    /\ \A q \in Replicas: flight[r][q] = <<>>
    /\ promised' = [promised EXCEPT ![r] = 1]
    /\ right' = [right EXCEPT ![r] = {}]
    /\ log' = [log EXCEPT ![r] = [i \in Indices |-> Empty]]
    /\ commit' = [commit EXCEPT ![r] = 0]
    /\ flight' = [c \in Replicas |-> [flight[c] EXCEPT ![r] = <<>>]]
    /\ phase' = [phase EXCEPT ![r] = "none"]
    /\ tail' = [tail EXCEPT ![r] = 0]
    /\ has' = [has EXCEPT ![r] = Nothing]
    /\ follows' = [follows EXCEPT ![r] = {}]
    /\ back' = [back EXCEPT ![r] = "away"]
    /\ UNCHANGED <<owner, late, told, ghosts>>

(* Another node takes it in: it counts no grant and no entry of the        *)
(* earlier one any more, and tells the new one what it has promised.       *)
TakeIn(q, r) ==
    /\ back[r] = "away"
    /\ q /= r /\ told[q] = 0
    /\ has' = [has EXCEPT ![q][r] = No]
    /\ follows' = [follows EXCEPT ![q] = @ \ {r}]
    /\ told' = [told EXCEPT ![q] = promised[q]]
    /\ UNCHANGED <<owner, promised, right, log, commit, flight, phase, tail, late, back, ghosts>>

(* All have taken it in. It promises the highest ballot that it was told,  *)
(* and lets its owner write.                                               *)
Promise(r) ==
    LET highest == CHOOSE h \in 1..Ballots: (\E q \in Replicas: told[q] = h) /\ \A q \in Replicas: told[q] <= h
        b == IF Mutant = "promise forgotten" THEN 1 ELSE highest
        c == owner[b]
    IN  /\ back[r] = "away"
        /\ \A q \in Replicas \ {r}: told[q] /= 0
        /\ promised' = [promised EXCEPT ![r] = b]
        /\ right' = [right EXCEPT ![r] = {c} \ {r}]
        /\ has' = IF c /= r /\ promised[c] = b THEN [has EXCEPT ![c][r] = Granted] ELSE has
        /\ back' = [back EXCEPT ![r] = IF Mutant = "votes empty" THEN "votes" ELSE "empty"]
        /\ told' = [q \in Replicas |-> 0]
        /\ UNCHANGED <<owner, log, commit, flight, phase, tail, follows, late, ghosts>>

Next ==
    \/ /\ \/ \E c \in Replicas, b \in 1..Ballots: Ask(c, b) \/ Grant(c, b)
          \/ \E c \in Replicas: Copy(c) \/ Adopt(c) \/ Lead(c) \/ Propose(c) \/ Decide(c)
          \/ \E c, r \in Replicas: Again(c, r) \/ Bring(c, r) \/ Land(c, r)
          \/ \E post \in late: PostLate(post)
       /\ UNCHANGED coming
    \/ \E c, r \in Replicas: Follow(c, r) \/ TakeIn(c, r)
    \/ \E r \in Replicas: Return(r) \/ Promise(r)

Spec == Init /\ [][Next]_vars

(* One course of events among five replicas, for a mutant that needs them: *)
(* the first leader proposes an entry, the second does not find it, the    *)
(* first leads again and does not find it either, and asks a third time.   *)
Course ==
    /\ \A b \in 2..Ballots: owner[b] /= Nobody => owner[b - 1] /= Nobody
    /\ owner[2] /= owner[1] /\ owner[3] \in {Nobody, owner[1]}
    /\ proposed \subseteq {<<1, 1>>}
    /\ \A d \in decided: d[3] = 4
    /\ \A c \in Replicas:
        /\ promised[c] > 1 => Cardinality(Quorum(c)) <= IF promised[c] = 2 THEN 4 ELSE 3
        /\ phase[c] = "leads" /\ promised[c] \in {2, 3} => tail[c] = 0
    /\ owner[2] /= Nobody => proposed /= {}
    /\ owner[3] /= Nobody => phase[owner[2]] = "leads" \/ promised[owner[2]] /= 2
    /\ owner[4] /= Nobody => refused /= {}

-----------------------------------------------------------------------------

TypeOK ==
    /\ promised \in [Replicas -> 1..Ballots]
    /\ commit \in [Replicas -> 0..Length]
    /\ tail \in [Replicas -> 0..Length]
    /\ has \in [Replicas -> [Replicas -> No..Length]]
    /\ \A r \in Replicas, i \in Indices: log[r][i] \in {Empty, Torn} \cup [by: 1..Ballots, ballot: 1..Ballots]
    /\ back \in [Replicas -> {"never", "away", "empty", "votes"}]
    /\ told \in [Replicas -> 0..Ballots]

(* No two entries are decided at an index, and no replica's reader finds   *)
(* another one, or pieces.                                                 *)
Agreement ==
    /\ \A d, e \in decided: d[1] = e[1] => d[2] = e[2]
    /\ \A r \in Replicas: \A i \in 1..commit[r]: \E d \in decided: d[1] = i /\ d[2] = log[r][i].by

(* A decided entry is in the memory of a majority, and every later leader  *)
(* has it. (One that has come back counts until it votes: a leader brings  *)
(* it the entry before.)                                                   *)
Durability ==
    \A d \in decided:
        /\ Cardinality({r \in Replicas: log[r][d[1]].by = d[2] \/ ~Votes(r)}) >= Majority
        /\ \A c \in Replicas: phase[c] = "leads" /\ promised[c] >= d[3] => log[c][d[1]].by = d[2]

(* Only the node with the promised ballot may write, and nothing that was  *)
(* put with an earlier ballot can land.                                    *)
OneWriter ==
    \A r \in Replicas:
        /\ right[r] \subseteq {owner[promised[r]]} \ {r}
        /\ \A c \in Replicas:
            /\ flight[c][r] /= <<>> => c \in right[r]
            /\ \A k \in DOMAIN flight[c][r]: flight[c][r][k].ballot = promised[r]

(* A majority has promised the ballot of a decided entry, or a higher one. *)
(* (One that is away grants nothing.)                                      *)
Promised ==
    \A d \in decided: Cardinality({r \in Replicas: promised[r] >= d[3] \/ back[r] = "away"}) >= Majority

(* What is decided was proposed at this index, and was not refused.        *)
Validity == \A d \in decided: <<d[1], d[2]>> \in proposed \ refused

(* A leader that may write a log knows of all that is decided there.       *)
NotAhead ==
    \A c, r \in Replicas: phase[c] \in {"confirms", "leads"} /\ c \in right[r] => commit[r] <= tail[c]

=============================================================================

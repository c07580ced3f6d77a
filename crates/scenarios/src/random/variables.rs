//! Variables: a word of atomics, a word that one thread pushes, a value with an owner.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::{
    AtomicVar, Endpoint, ErrorKind, Node, NodeId, OwnedVar, OwnedWriter, Result, SharedVar, TearCheck,
};

use super::knowledge::{Message, Party, Read};
use super::peril::Peril;
use super::{Object, Program, Step};
use crate::keep;
use crate::vars::atomic::{Add, Calls, Exchange, Load, Store, Swap};
use farfield_check::parts::Excuse;

// ---- AtomicVar ----------------------------------------------------------------------------------------------------

/// A word with linearizable calls. If all calls are additions, each thread has a byte of the word for its own: so a
/// reader of the word knows which additions it contains, and the knowledge of their threads.
struct Atomic {
    home: usize,
    vars: Rc<Vec<AtomicVar>>,
    calls: Calls,
    only_adds: bool,
    /// What each thread knew at each of its additions.
    adds: Rc<RefCell<Vec<Vec<Message>>>>,
}

pub(super) fn open_atomic(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let home = program.draw_node();
    let open = move |node: &Node| AtomicVar::open(node, "atomic", NodeId(home as u16));
    let vars = keep(program.cluster, program.cluster.on_each(open)?);
    let calls = Calls(program.cluster.log());
    let (nodes, peril, at_end) = (program.cluster.nodes(), program.peril.clone(), (Rc::clone(&vars), calls.clone()));
    program.cluster.at_end(move || {
        let (vars, calls) = at_end;
        for node in 0..nodes.len() {
            if peril.goes_on(&nodes[home]) && peril.goes_on(&nodes[node]) {
                calls.make(100 + node as u32, Load, &vars[node], &nodes[node].endpoint()?)?;
            }
        }
        calls.assert_linearizable();
        Ok(())
    });
    let adds = Rc::new(RefCell::new(vec![Vec::new(); program.threads.len()]));
    Ok(Box::new(Atomic { home, vars, calls, only_adds: program.draw(2) == 0, adds }))
}

impl Object for Atomic {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (home, only_adds, peril) = (self.home, self.only_adds, program.peril.clone());
        let (vars, calls, adds) = (Rc::clone(&self.vars), self.calls.clone(), Rc::clone(&self.adds));
        let value = |number: usize| 1 + number as u64;
        let call = match program.draw(if only_adds { 3 } else { 6 }) {
            0 => Load,
            1 | 2 if only_adds => Add(1 << (8 * thread)),
            1 | 2 => Add(value(program.draw(3))),
            3 => Exchange(program.draw(3) as u64, value(program.draw(8))),
            4 => Swap(value(program.draw(8))),
            _ => Store(value(program.draw(8))),
        };
        Some(Box::new(move |ep, party| {
            if let Add(_) = call {
                adds.borrow_mut()[party.number].push(party.message());
            }
            let since = Excuse::now();
            let answer = calls.ask(party.number as u32, call, &vars[party.node], ep);
            let Some(answer) = peril.unless_faults(since, answer)? else { return Ok(()) };
            party.has_flushed(home);
            if let Some(found) = answer.filter(|_| only_adds) {
                let me = party.number;
                for (thread, adds) in adds.borrow().iter().enumerate().filter(|(thread, _)| *thread != me) {
                    let count = (found >> (8 * thread) & 0xff) as usize;
                    // A wrong count is the history's matter.
                    if let Some(message) = count.checked_sub(1).and_then(|last| adds.get(last)) {
                        party.learns(message, Some(home));
                    }
                }
            }
            Ok(())
        }))
    }
}

// ---- SharedVar ----------------------------------------------------------------------------------------------------

/// A word of which one thread stores versions. It pushes them, and the others load their copies; or the others pull.
struct Shared {
    writer: usize,
    is_pulled: bool,
    vars: Rc<Vec<SharedVar<u64>>>,
    /// The copies.
    registers: Rc<[usize]>,
}

/// The registers of a variable's copies: the writer stores on its own node, and puts to all others.
fn copies(program: &Program<'_>, writer: usize) -> Rc<[usize]> {
    let copy =
        |node: usize| program.board.register(&format!("copy {node}"), node, writer, node == program.node_of(writer));
    (0..program.nodes()).map(copy).collect()
}

/// Judges each copy and the last value put to it in the end, if all nodes have stayed.
fn judge_copies<V: 'static>(
    program: &Program<'_>,
    vars: &Rc<Vec<V>>,
    registers: &Rc<[usize]>,
    judge: impl Fn(&V, u64, &Peril) + 'static,
) {
    let (nodes, board, peril) = (program.cluster.nodes(), program.board.clone(), program.peril.clone());
    let (vars, registers) = (Rc::clone(vars), Rc::clone(registers));
    program.cluster.at_end(move || {
        if nodes.iter().all(|node| peril.goes_on(node)) {
            vars.iter().zip(&*registers).for_each(|(var, register)| judge(var, board.last(*register), &peril));
        }
        Ok(())
    });
}

pub(super) fn open_shared(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let (writer, is_pulled) = (program.draw_thread(), program.draw(3) == 0);
    let vars = keep(program.cluster, program.cluster.on_each(|node| SharedVar::<u64>::open(node, "shared"))?);
    let registers = copies(program, writer);
    if !is_pulled {
        judge_copies(program, &vars, &registers, |var, last, _| {
            assert_eq!(var.load(), last, "the last push was lost");
        });
    }
    Ok(Box::new(Shared { writer, is_pulled, vars, registers }))
}

/// The nodes that a push has reached, if only faults kept it from others.
fn reached(nodes: &[NodeId], pushed: Result<()>, since: Excuse, peril: &Peril) -> Result<Vec<NodeId>> {
    let missed = match &pushed {
        Ok(()) => Vec::new(),
        Err(error) => match error.kind() {
            ErrorKind::Missed { nodes } => nodes.iter().map(|missed| missed.0).collect(),
            _ => nodes.to_vec(),
        },
    };
    peril.unless_faults(since, pushed)?;
    Ok(nodes.iter().copied().filter(|node| !missed.contains(node)).collect())
}

impl Object for Shared {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (vars, registers, peril) = (Rc::clone(&self.vars), Rc::clone(&self.registers), program.peril.clone());
        let (is_pulled, node, home) = (self.is_pulled, program.node_of(thread), program.node_of(self.writer));
        if thread == self.writer {
            let others = (0..program.nodes()).filter(|other| *other != node && (program.draw(4) > 0));
            let others: Vec<NodeId> = others.map(|other| NodeId(other as u16)).collect();
            let fences = program.draw(2) == 0;
            return Some(Box::new(move |ep, party| {
                let var = &vars[node];
                let version = party.next(registers[node]);
                var.store(version);
                party.has_written(registers[node], version);
                if is_pulled {
                    return Ok(());
                }
                others.iter().for_each(|other| party.will_write(registers[other.index()], version));
                let since = Excuse::now();
                let pushed = ep.block_on(var.push(ep, others.clone()));
                for other in reached(&others, pushed, since, &peril)? {
                    party.has_written(registers[other.index()], version);
                }
                let fenced = if fences { ep.block_on(var.fence(ep, others.clone())).map(|()| true) } else { Ok(false) };
                if peril.unless_faults(since, fenced)? == Some(true) {
                    others.iter().for_each(|other| party.has_flushed(other.index()));
                }
                Ok(())
            }));
        }
        // Pulls of one node overwrite its copy, so one thread of a node makes them. The writer's node has no need.
        if is_pulled && (node == home || !program.is_first(thread)) {
            return None;
        }
        Some(Box::new(move |ep, party| {
            if !is_pulled {
                party.has_read(registers[node], vars[node].load(), Read::Load);
                return Ok(());
            }
            let since = Excuse::now();
            let pulled = ep.block_on(vars[node].pull(ep, NodeId(home as u16)));
            if let Some(version) = peril.unless_faults(since, pulled)? {
                party.has_read(registers[home], version, Read::Get);
            }
            Ok(())
        }))
    }
}

// ---- OwnedVar -----------------------------------------------------------------------------------------------------

/// Two words, which may be torn.
type Pair = [u64; 2];

/// A pair with an owner, which stores versions, and pushes most of them.
struct Owned {
    writer: usize,
    vars: Rc<Vec<OwnedVar<Pair>>>,
    end: Rc<RefCell<OwnedWriter<Pair>>>,
    registers: Rc<[usize]>,
}

fn whole(pair: Pair) -> u64 {
    assert_eq!(pair[0], pair[1], "a torn value");
    pair[0]
}

pub(super) fn open_owned(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let writer = program.draw_thread();
    let owner = NodeId(program.node_of(writer) as u16);
    let tear_check = if program.draw(2) == 0 { TearCheck::Guards } else { TearCheck::Checksum };
    let open = move |node: &Node| OwnedVar::<Pair>::open_with(node, "owned", owner, tear_check);
    let vars = keep(program.cluster, program.cluster.on_each(open)?);
    let end = Rc::new(RefCell::new(vars[owner.index()].writer()?));
    let registers = copies(program, writer);
    judge_copies(program, &vars, &registers, |var, last, peril| {
        let found = var.try_load().map(whole);
        // After a refusal it may be torn, or be the refused one.
        assert!(found == Some(last) || matches!(peril, Peril::Refusals(_)), "{found:?} is not the last value");
    });
    Ok(Box::new(Owned { writer, vars, end, registers }))
}

fn store_and_push(
    ep: &Endpoint,
    party: &mut Party,
    end: &mut OwnedWriter<Pair>,
    registers: &[usize],
    pushes: bool,
    peril: &Peril,
) -> Result<()> {
    let version = party.next(registers[party.node]);
    end.store([version; 2]);
    party.has_written(registers[party.node], version);
    if !pushes {
        return Ok(());
    }
    let others: Vec<NodeId> =
        (0..registers.len()).filter(|node| *node != party.node).map(|node| NodeId(node as u16)).collect();
    others.iter().for_each(|other| party.will_write(registers[other.index()], version));
    let since = Excuse::now();
    let pushed = ep.block_on(end.push(ep));
    for other in reached(&others, pushed, since, peril)? {
        party.has_written(registers[other.index()], version);
    }
    Ok(())
}

impl Object for Owned {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (vars, registers, peril) = (Rc::clone(&self.vars), Rc::clone(&self.registers), program.peril.clone());
        let (node, home) = (program.node_of(thread), program.node_of(self.writer));
        if thread == self.writer {
            let (end, pushes) = (Rc::clone(&self.end), program.draw(3) > 0);
            return Some(Box::new(move |ep, party| {
                store_and_push(ep, party, &mut end.borrow_mut(), &registers, pushes, &peril)
            }));
        }
        let kind = program.draw(3);
        Some(Box::new(move |ep, party| {
            let var = &vars[node];
            let since = Excuse::now();
            match kind {
                0 => {
                    let before = ep.timeout();
                    // One attempt: a thread that tries again does so for as long as the owner is in a store.
                    ep.set_timeout(Duration::ZERO);
                    let pulled = ep.block_on(var.pull(ep));
                    ep.set_timeout(before);
                    match pulled {
                        Err(error) if error.is_timeout() => {}
                        pulled => {
                            if let Some(pair) = peril.unless_faults(since, pulled)? {
                                let how = if node == home { Read::Load } else { Read::Get };
                                party.has_read(registers[home], whole(pair), how);
                            }
                        }
                    }
                }
                1 if !matches!(peril, Peril::Refusals(_)) => {
                    let loaded = ep.block_on(var.load(ep));
                    if let Some(pair) = peril.unless_faults(since, loaded)? {
                        party.has_read(registers[node], whole(pair), Read::Load);
                    }
                }
                _ => {
                    if let Some(pair) = var.try_load() {
                        party.has_read(registers[node], whole(pair), Read::Load);
                    }
                }
            }
            Ok(())
        }))
    }
}

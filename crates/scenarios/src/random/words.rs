//! Words of several nodes, with one writer each: puts, gets, loads, stores and fences, without an object.

use std::rc::Rc;

use farfield_core::fabric::Region;
use farfield_core::{NodeId, Result};

use super::knowledge::Read;
use super::{Object, Program, Step};
use farfield_check::parts::{Excuse, word};

struct Word {
    register: usize,
    home: usize,
    writer: usize,
    is_stored: bool,
    region: Region,
}

struct Words(Vec<Rc<Word>>);

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let words = (0..2 + program.draw(2)).map(|number| {
        let (home, writer) = (program.draw_node(), program.draw_thread());
        let is_stored = program.node_of(writer) == home && program.draw(2) == 0;
        let name = format!("x{number}");
        let register = program.board.register(&name, home, writer, is_stored);
        Ok(Rc::new(Word { register, home, writer, is_stored, region: word(program.cluster, home, &name)? }))
    });
    let words = words.collect::<Result<Vec<_>>>()?;
    let (nodes, board, peril, at_end) =
        (program.cluster.nodes(), program.board.clone(), program.peril.clone(), words.clone());
    program.cluster.at_end(move || {
        // All puts have landed, unless a node has not stayed.
        if nodes.iter().all(|node| peril.goes_on(node)) {
            for word in at_end {
                assert_eq!(word.region.word(0).load(), board.last(word.register), "the last put was lost");
            }
        }
        Ok(())
    });
    Ok(Box::new(Words(words)))
}

impl Object for Words {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let peril = program.peril.clone();
        let (own, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|word| word.writer == thread);
        let kind = program.draw(5);
        if kind == 0 {
            let nodes: Vec<NodeId> = program.cluster.nodes().iter().map(farfield_core::Node::id).collect();
            return Some(Box::new(move |ep, party| {
                let since = Excuse::now();
                let fenced = ep.block_on(ep.global_fence(nodes.clone())).map_err(Into::into);
                if peril.unless_faults(since, fenced)?.is_some() {
                    party.has_fenced();
                }
                Ok(())
            }));
        }
        if !own.is_empty() && (kind < 3 || others.is_empty()) {
            let word = Rc::clone(own[program.draw(own.len())]);
            return Some(Box::new(move |ep, party| {
                let version = party.next(word.register);
                if word.is_stored {
                    word.region.word(0).store(version);
                } else {
                    let put = ep.put_value(word.region.remote(0), version).detach().map_err(Into::into);
                    if peril.unless_faults(Excuse::now(), put)?.is_none() {
                        return Ok(());
                    }
                }
                party.has_written(word.register, version);
                Ok(())
            }));
        }
        let word = Rc::clone(others[program.draw(others.len())]);
        let loads = program.node_of(thread) == word.home && program.draw(2) == 0;
        Some(Box::new(move |ep, party| {
            if loads {
                party.has_read(word.register, word.region.word(0).load(), Read::Load);
                return Ok(());
            }
            let since = Excuse::now();
            let found = ep.get(word.region.remote::<u64>(0)).wait().map_err(Into::into);
            if let Some(version) = peril.unless_faults(since, found)? {
                party.has_read(word.register, version, Read::Get);
            }
            Ok(())
        }))
    }
}

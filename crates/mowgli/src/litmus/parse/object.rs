//! Declarations of objects.

use super::super::expand::Binding;
use super::super::implementation::Implementation;
use super::super::*;
use super::{Parser, THREADS_MAX};
use crate::model::{HOME, Kind, WRITER};
use crate::text::{Position, Token};

impl Parser {
    /// Declarations, up to the closing brace.
    pub(in super::super) fn declarations(&mut self) -> Result<()> {
        while !self.reader.takes("}") {
            if !self.inside.is_empty() && self.reader.takes_word("for") {
                self.each(|parser| {
                    parser.reader.expect("{")?;
                    parser.declarations()
                })?;
                continue;
            }
            self.object()?;
            self.reader.expect(";")?;
        }
        Ok(())
    }

    /// One declaration, without its semicolon.
    fn object(&mut self) -> Result<()> {
        let position = self.reader.position();
        let first = self.reader.name("an object")?;
        let (kind, name) = match self.reader.peek() {
            Token::Name(_) => (Some(first), self.reader.name("an object")?),
            _ => (None, first),
        };
        let name = if self.inside.is_empty() { name } else { self.path(position, &name)? };
        let (library, kind) = self.kind(position, kind)?;
        if self.test.objects.iter().any(|other| other.name == name) {
            return self.fail(position, format!("there is a `{name}` already"));
        }
        let mut home = None;
        if kind.has_home() {
            if !self.reader.takes("@") {
                return Err(self.reader.unexpected(&format!("`@` and the node of `{name}`")));
            }
            home = Some(self.node_term()?);
        }
        let threads = self.threads_of(&kind)?;
        let mut starts = kind.starts.map(Value::number);
        let equals = self.reader.position();
        if self.reader.takes("=") {
            if starts.is_none() {
                return self.fail(equals, format!("a `{}` has no initial value", kind.name));
            }
            starts = Some(self.starting_value()?);
        }
        let of = self.implementations.iter().find(|(of, _)| *of == library).map(|(_, it)| Rc::clone(it));
        let at = self.test.objects.len();
        self.test.objects.push(Object { name, library, kind: kind.name, home, threads, starts });
        match of {
            Some(of) => self.implement(position, at, &of),
            None => Ok(()),
        }
    }

    /// The kind of an object, and its library's place: the kind of that name, or the first one.
    fn kind(&self, position: Position, name: Option<String>) -> Result<(usize, Kind)> {
        let mut libraries = self.test.libraries.iter().enumerate();
        let found = match &name {
            Some(kind) => {
                // Of those that have it, one that is not implemented, where an implementation declares it.
                let all = libraries.filter_map(|(at, library)| library.kind(kind).map(|kind| (at, kind.clone())));
                let mut all = all.filter(|(at, _)| self.is_usable(*at));
                all.next()
            }
            None => libraries.find_map(|(at, library)| library.kinds.first().map(|kind| (at, kind.clone()))),
        };
        match (found, name) {
            (Some(found), _) => Ok(found),
            (None, Some(kind)) => self.fail(position, format!("there are no objects of the kind `{kind}`")),
            (None, None) => self.fail(position, "the libraries of this test have no objects"),
        }
    }

    /// The threads of each attribute of an object, if its kind has attributes besides the home.
    fn threads_of(&mut self, kind: &Kind) -> Result<Vec<(String, Vec<usize>)>> {
        let attributes: Vec<_> = kind.attributes.iter().filter(|attribute| *attribute != HOME).cloned().collect();
        if attributes.is_empty() {
            return Ok(Vec::new());
        }
        self.reader.expect("(")?;
        let mut all = Vec::new();
        loop {
            let position = self.reader.position();
            let thread = self.thread_name()?;
            self.threads_used.push((thread, position));
            all.push(thread);
            if self.reader.takes(")") {
                break;
            }
            self.reader.expect(",")?;
        }
        let mut all = all.into_iter();
        let mut threads = Vec::new();
        for attribute in attributes {
            let count = if attribute == WRITER { 1 } else { THREADS_MAX };
            threads.push((attribute, all.by_ref().take(count).collect()));
        }
        Ok(threads)
    }

    /// Declares the objects that an object is made of by its library's implementation.
    fn implement(&mut self, position: Position, at: usize, of: &Rc<Implementation>) -> Result<()> {
        let kind = &self.test.objects[at].kind;
        let Some((_, variable, block)) = of.objects.iter().find(|object| object.0 == *kind) else {
            return self
                .fail(position, format!("the implementation `{}` has no objects of the kind `{kind}`", of.name));
        };
        let names = vec![(variable.clone(), Binding::Object(at))];
        self.expand(of, block, names, None, |parser| {
            parser.reader.expect("{")?;
            parser.declarations()
        })?;
        // The objects that it is made of have its memory.
        self.test.objects[at].starts = None;
        Ok(())
    }

    pub(in super::super) fn object_of(&self, name: &str) -> Option<usize> {
        self.test.objects.iter().position(|object| object.name == name)
    }
}

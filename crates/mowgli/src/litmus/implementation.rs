//! Implementations: the methods of a library as programs over others. LOCO paper, section 3.5.
//!
//! ```text
//! implementation NAME of LIBRARY over LIBRARY, ...
//! object KIND x { DECLARATION ... }      what an object of the kind is made of
//! global { DECLARATION ... }             what there is once
//! METHOD(PARAMETER, ...) { STATEMENT ... }
//! ```
//!
//! `implementation NAME extends NAME` has everything of the other one; its own kinds and methods replace the other's.
//!
//! A declaration is that of a litmus test, with names like `x.copy[n]`, or a `for n in SET { ... }`. Statements are
//! those of a litmus test, and `for`, and `return`. A `for` goes over nodes (`nodes`, `nodes(THREADS)`, `{1, 2}`, a
//! parameter), threads (`b.members`) or numbers (`0..4`), and `\` takes out some; `here` and `me` are the node and the
//! thread of the call. All of them are unrolled when a test is expanded. Names of operations are the implementation's
//! own. A register belongs to one call; `own.r`, or `own.r[n]`, to the thread for good, and is 0 at first.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::model::list;
use crate::text::{Position, Reader, Result, Token};

/// How the methods of a library are made of those of others.
///
/// ```
/// # use mowgli::litmus::Implementation;
/// let text = "implementation loud of sv over rdmawait
///     object shared x { for n in nodes { word x.copy[n] @ n; } }
///     Read(x) { Mfence(); return Read(x.copy[here]); }";
/// let loud = Implementation::parse("loud", text, &[])?;
/// assert_eq!((loud.name.as_str(), loud.of.as_str()), ("loud", "sv"));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Implementation {
    /// Its name.
    pub name: String,
    /// The library that it implements.
    pub of: String,
    /// Those that it uses.
    pub over: Vec<String>,
    pub(crate) reader: Reader,
    pub(crate) position: Position,
    /// Kind, variable, and its block.
    pub(crate) objects: Vec<(String, String, Reader)>,
    pub(crate) globals: Vec<Reader>,
    /// Name, parameters, and its block.
    pub(crate) methods: Vec<(String, Vec<String>, Reader)>,
}

/// Those of the LOCO paper, and some with mistakes, two of them from the paper; each after the one that it extends.
const BUILTIN: &[(&str, &str)] = &[
    ("sv_rdma", include_str!("../../implementations/sv_rdma")),
    ("rdmawait_rdmatso", include_str!("../../implementations/rdmawait_rdmatso")),
    ("bal_sv", include_str!("../../implementations/bal_sv")),
    ("bal_no_fence", include_str!("../../implementations/bal_no_fence")),
    ("rbl_sv", include_str!("../../implementations/rbl_sv")),
    ("msw_hash", include_str!("../../implementations/msw_hash")),
    ("msw_guards", include_str!("../../implementations/msw_guards")),
    ("msw_guards_in_order", include_str!("../../implementations/msw_guards_in_order")),
    ("msw_guards_no_wait", include_str!("../../implementations/msw_guards_no_wait")),
    ("msw_guards_no_fence", include_str!("../../implementations/msw_guards_no_fence")),
];

impl Implementation {
    /// Those of the LOCO paper: `sv_rdma` (shared variables over RDMA^WAIT), `bal_sv` (the barrier over shared
    /// variables), `rbl_sv` (the ring buffer), `msw_hash` (values of two words), `rdmawait_rdmatso` (waits by polls).
    /// `msw_guards` is sound for clients of which one thread writes a place, and waits for a get before it reads the
    /// result. And four are unsound: `bal_no_fence`, `msw_guards_in_order`, `msw_guards_no_wait`,
    /// `msw_guards_no_fence`.
    ///
    /// ```
    /// let all = mowgli::litmus::Implementation::builtin();
    /// assert!(all.iter().any(|implementation| implementation.name == "bal_sv" && implementation.of == "bal"));
    /// ```
    pub fn builtin() -> Vec<Rc<Implementation>> {
        let mut all = Vec::new();
        for (name, text) in BUILTIN {
            let implementation = Implementation::parse(&format!("implementations/{name}"), text, &all);
            all.push(Rc::new(implementation.unwrap_or_else(|error| panic!("{error}"))));
        }
        all
    }

    /// Reads one, which may extend one that is known. Its methods are looked at when a test is expanded.
    ///
    /// # Errors
    /// The mistake in the text, and its position.
    ///
    /// ```
    /// # use mowgli::litmus::Implementation;
    /// let text = "implementation loud extends sv_rdma Read(x) { Mfence(); return Read(x.copy[here]); }";
    /// let loud = Implementation::parse("loud", text, &Implementation::builtin())?;
    /// assert_eq!((loud.of.as_str(), &loud.over[..]), ("sv", &["rdmawait".to_owned()][..]));
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn parse(file: &str, text: &str, known: &[Rc<Implementation>]) -> Result<Implementation> {
        let mut reader = Reader::new(file, text)?;
        reader.expect_word("implementation")?;
        let name = reader.name("the implementation's name")?;
        let mut all = if reader.takes_word("extends") {
            let position = reader.position();
            let other = reader.name("the name of an implementation")?;
            let Some(other) = known.iter().find(|known| known.name == other) else {
                let names = list(known.iter().map(|known| known.name.as_str()));
                return Err(reader.error(position, format!("there is no implementation `{other}`; known are {names}")));
            };
            Implementation { name, position, reader: reader.clone(), ..Implementation::clone(other) }
        } else {
            if !reader.takes_word("of") {
                return Err(reader.unexpected("`of` or `extends`"));
            }
            let position = reader.position();
            let of = reader.name("the name of a library")?;
            reader.expect_word("over")?;
            let mut over = vec![reader.name("the name of a library")?];
            while reader.takes(",") {
                over.push(reader.name("the name of a library")?);
            }
            let (objects, globals, methods) = Default::default();
            Implementation { name, of, over, reader: reader.clone(), position, objects, globals, methods }
        };
        let mut own = BTreeSet::new();
        while *reader.peek() != Token::End {
            let position = reader.position();
            let word = reader.name("`object`, `global` or a method")?;
            match word.as_str() {
                "object" => {
                    let kind = reader.name("a kind of objects")?;
                    let variable = reader.name("a name for the object")?;
                    if !own.insert(format!("object {kind}")) {
                        return Err(reader.error(position, format!("what a `{kind}` is made of was said before")));
                    }
                    all.objects.retain(|other| other.0 != kind);
                    all.objects.push((kind, variable, reader.clone()));
                }
                "global" => all.globals.push(reader.clone()),
                _ => {
                    reader.expect("(")?;
                    let parameters = reader.list(",", ")", |reader| reader.name("a parameter"))?;
                    if !own.insert(word.clone()) {
                        return Err(reader.error(position, format!("there is a method `{word}` already")));
                    }
                    all.methods.retain(|other| other.0 != word);
                    all.methods.push((word, parameters, reader.clone()));
                }
            }
            reader.expect("{")?;
            reader.skip_block()?;
        }
        Ok(all)
    }
}

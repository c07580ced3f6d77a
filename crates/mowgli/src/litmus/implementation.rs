//! Implementations: the methods of a library as programs over others. LOCO paper, section 3.5.
//!
//! ```text
//! implementation NAME of LIBRARY over LIBRARY, ...
//! object KIND x { DECLARATION ... }      what an object of the kind is made of
//! global { DECLARATION ... }             what there is once
//! METHOD(PARAMETER, ...) { STATEMENT ... }
//! ```
//!
//! A declaration is that of a litmus test, with names like `x.copy[n]`, or a `for n in SET { ... }`. Statements are those of a litmus
//! test, and `for`, and `return`. A `for` goes over nodes (`nodes`, `nodes(THREADS)`, `{1, 2}`, a parameter), threads (`b.members`)
//! or numbers (`0..4`), and `\` takes out some; `here` and `me` are the node and the thread of the call. All of them are unrolled when
//! a test is expanded. Names of operations are the implementation's own. A register belongs to one call; `own.r`, or `own.r[n]`, to
//! the thread for good, and is 0 at first.

use std::rc::Rc;

use crate::text::{Position, Reader, Result, Token};

/// How the methods of a library are made of those of others.
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
    /// Kind, variable, and where its block begins.
    pub(crate) objects: Vec<(String, String, usize)>,
    pub(crate) globals: Vec<usize>,
    /// Name, parameters, and where its block begins.
    pub(crate) methods: Vec<(String, Vec<String>, usize)>,
}

/// Those of the LOCO paper, and some with mistakes, of which it tells two.
const BUILTIN: &[(&str, &str)] = &[
    ("sv_rdma", include_str!("../../implementations/sv_rdma")),
    ("rdmawait_rdmatso", include_str!("../../implementations/rdmawait_rdmatso")),
    ("bal_sv", include_str!("../../implementations/bal_sv")),
    ("bal_no_fence", include_str!("../../implementations/bal_no_fence")),
    ("rbl_sv", include_str!("../../implementations/rbl_sv")),
    ("msw_guards", include_str!("../../implementations/msw_guards")),
    ("msw_guards_in_order", include_str!("../../implementations/msw_guards_in_order")),
    ("msw_guards_no_wait", include_str!("../../implementations/msw_guards_no_wait")),
    ("msw_guards_no_fence", include_str!("../../implementations/msw_guards_no_fence")),
];

impl Implementation {
    /// Those of the LOCO paper: `sv_rdma` (shared variables over RDMA^WAIT), `bal_sv` (the barrier over shared variables), `rbl_sv` (the
    /// ring buffer), `msw_guards` (values of two words), `rdmawait_rdmatso` (waits by polls). And four that are unsound: `bal_no_fence`, `msw_guards_in_order`,
    /// `msw_guards_no_wait`, `msw_guards_no_fence`.
    ///
    /// ```
    /// let all = mowgli::litmus::Implementation::builtin();
    /// assert!(all.iter().any(|implementation| implementation.name == "bal_sv" && implementation.of == "bal"));
    /// ```
    pub fn builtin() -> Vec<Rc<Implementation>> {
        let parse = |(name, text): &(&str, &str)| Implementation::parse(&format!("implementations/{name}"), text);
        let all = BUILTIN.iter().map(|builtin| parse(builtin).map(Rc::new));
        all.map(|implementation| implementation.unwrap_or_else(|error| panic!("{error}"))).collect()
    }

    /// Reads one. Its methods are looked at when a test is expanded.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(file: &str, text: &str) -> Result<Implementation> {
        let mut reader = Reader::new(file, text)?;
        reader.expect_word("implementation")?;
        let name = reader.name("the implementation's name")?;
        reader.expect_word("of")?;
        let position = reader.position();
        let of = reader.name("the name of a library")?;
        reader.expect_word("over")?;
        let mut over = Vec::new();
        loop {
            over.push(reader.name("the name of a library")?);
            if !reader.takes(",") {
                break;
            }
        }
        let (objects, globals, methods) = Default::default();
        let mut all = Implementation { name, of, over, reader: reader.clone(), position, objects, globals, methods };
        while *reader.peek() != Token::End {
            let word = reader.name("`object`, `global` or a method")?;
            match word.as_str() {
                "object" => {
                    let kind = reader.name("a kind of objects")?;
                    let variable = reader.name("a name for the object")?;
                    all.objects.push((kind, variable, reader.mark()));
                }
                "global" => all.globals.push(reader.mark()),
                _ => {
                    reader.expect("(")?;
                    let parameters = reader.list(",", ")", |reader| reader.name("a parameter"))?;
                    all.methods.push((word, parameters, reader.mark()));
                }
            }
            reader.expect("{")?;
            reader.skip_block()?;
        }
        Ok(all)
    }
}

//! Compares declarations with the C headers of this machine.
//!
//! The C compiler checks the size and alignment of every type, offset, size and type of every field, the value of every
//! constant, and whether every function has the type that it is called by. Each is a static assertion of one program.

use std::env;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::{Constants, Field, Function, Growth, Kind, Type};

/// C's names of types that are not declared.
const C_NAMES: &[(&str, &str)] = &[
    ("", "void"),
    ("c_void", "void"),
    ("c_char", "char"),
    ("c_schar", "signed char"),
    ("c_uchar", "unsigned char"),
    ("c_short", "short"),
    ("c_ushort", "unsigned short"),
    ("c_int", "int"),
    ("c_uint", "unsigned int"),
    ("c_long", "long"),
    ("c_ulong", "unsigned long"),
    ("c_longlong", "long long"),
    ("c_ulonglong", "unsigned long long"),
    ("i8", "int8_t"),
    ("i16", "int16_t"),
    ("i32", "int32_t"),
    ("i64", "int64_t"),
    ("isize", "intptr_t"),
    ("u8", "uint8_t"),
    ("u16", "uint16_t"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("usize", "size_t"),
    ("f32", "float"),
    ("f64", "double"),
    ("ssize_t", "ssize_t"),
    ("pthread_mutex_t", "pthread_mutex_t"),
    ("pthread_cond_t", "pthread_cond_t"),
    ("FILE", "FILE"),
];

/// The names that C has for the declared types and enumerations.
///
/// ```
/// use farfield_c_decl::{Declarations, Names, c_types};
///
/// c_types! {
///     /// A pair.
///     fixed union pair {
///         one: u8,
///         other: u8,
///     }
/// }
/// let pair = |names| Declarations { types: &[TYPES], ..Declarations::new(&["pair.h"], "libpair-dev", names) };
/// assert_eq!(pair(Names::Tags).spelling("*mut pair").as_deref(), Some("__typeof__(union pair) *"));
/// assert_eq!(pair(Names::Typedefs).spelling("*mut pair").as_deref(), Some("__typeof__(pair) *"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Behind `struct`, `union` or `enum`.
    Tags,
    /// By `typedef`.
    Typedefs,
}

/// Why declarations are not known to be those of the headers.
///
/// ```
/// use farfield_c_decl::{CompareError, Declarations, Names, c_constants};
///
/// c_constants! {
///     /// Another limit than that of `limits.h`.
///     flags limits: i32 {
///         CHAR_BIT = 7,
///     }
/// }
/// let mut declarations =
///     Declarations { constants: &[CONSTANTS], ..Declarations::new(&["limits.h"], "libc6-dev", Names::Tags) };
/// let error = declarations.compare().unwrap_err();
/// assert!(matches!(&error, CompareError::Differ { .. }) && error.to_string().contains("CHAR_BIT is 7"), "{error}");
///
/// declarations.headers = &["is-not-there.h"];
/// assert!(matches!(declarations.compare(), Err(CompareError::NoHeaders { .. })));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompareError {
    /// There is no header, or no compiler.
    #[error("{headers} (package {packages}) cannot be compiled:\n{complaint}")]
    NoHeaders {
        /// The headers.
        headers: String,
        /// The packages that have them.
        packages: &'static str,
        /// The compiler's complaint.
        complaint: String,
    },
    /// Declarations differ from those of the headers, or are not there.
    #[error("declarations differ from those of {headers}; what these state here is not so there:\n{complaint}")]
    Differ {
        /// The headers.
        headers: String,
        /// The compiler's complaint: a failed assertion for each difference.
        complaint: String,
    },
}

/// A binding's declarations, and the headers that have them.
///
/// ```
/// use core::ffi::{c_char, c_int};
/// use farfield_c_decl::{Declarations, Names, c_functions};
///
/// c_functions! {
///     /// Functions of the C library.
///     struct Libc from "libc.so.6";
///     /// The number that a text begins with.
///     fn atoi(text: *const c_char) -> c_int;
/// }
/// let declarations = Declarations {
///     functions: &[Libc::FUNCTIONS],
///     ..Declarations::new(&["stdlib.h"], "libc6-dev", Names::Tags)
/// };
/// declarations.check();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Declarations {
    /// The headers to include, in this order.
    pub headers: &'static [&'static str],
    /// The packages that have the headers, for the message where there are none.
    pub packages: &'static str,
    /// The names that C has for the declared types and enumerations.
    pub names: Names,
    /// Other types: the name in Rust, and the type in C.
    pub aliases: &'static [(&'static str, &'static str)],
    /// The lists that [`c_types!`](crate::c_types) has made.
    pub types: &'static [&'static [Type]],
    /// The lists that [`c_constants!`](crate::c_constants) has made.
    pub constants: &'static [&'static [Constants]],
    /// The lists that [`c_functions!`](crate::c_functions) has made.
    pub functions: &'static [&'static [Function]],
}

/// A condition in C, which holds if a declaration is right.
struct Fact {
    what: String,
    condition: String,
}

impl Fact {
    fn new(what: String, condition: String) -> Fact {
        Fact { what, condition }
    }

    fn equal(what: &str, expression: &str, expected: i128) -> Fact {
        Fact::new(format!("{what} is {expected}"), format!("(long long)({expression}) == {expected}"))
    }

    fn same_type(what: &str, expression: &str, c_type: &str) -> Fact {
        let same = format!("__builtin_types_compatible_p(__typeof__({expression}), {c_type})");
        Fact::new(format!("{what} is {c_type}"), same)
    }
}

impl Declarations {
    /// None yet, of these headers.
    ///
    /// ```
    /// # use farfield_c_decl::{Declarations, Names};
    /// assert_eq!(Declarations::new(&["stdlib.h"], "libc6-dev", Names::Tags).compare()?, 0);
    /// # Ok::<(), farfield_c_decl::CompareError>(())
    /// ```
    #[must_use]
    pub const fn new(headers: &'static [&'static str], packages: &'static str, names: Names) -> Declarations {
        Declarations { headers, packages, names, aliases: &[], types: &[], constants: &[], functions: &[] }
    }

    /// Compares the declarations with the headers, in a test. A machine without headers or compiler passes and prints
    /// so, unless `FARFIELD_NEED_HEADERS=1`. Headers in another place are found by `CPATH=DIR`.
    ///
    /// # Panics
    /// Declarations differ, or headers are needed and not there.
    ///
    /// ```
    /// # use farfield_c_decl::{Declarations, Names, c_constants};
    /// c_constants! {
    ///     /// Limits of integers.
    ///     flags limits: i32 {
    ///         CHAR_BIT = 8,
    ///         INT_MAX = i32::MAX,
    ///     }
    /// }
    /// Declarations { constants: &[CONSTANTS], ..Declarations::new(&["limits.h"], "libc6-dev", Names::Tags) }.check();
    /// ```
    pub fn check(&self) {
        let is_needed = env::var_os("FARFIELD_NEED_HEADERS").is_some_and(|value| value == "1");
        match self.compare() {
            Ok(facts) => eprintln!("{facts} facts about {} types are as in the headers", self.types().count()),
            Err(error @ CompareError::NoHeaders { .. }) if !is_needed => {
                eprintln!("the declarations are not compared: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Compares the declarations with the headers, and returns the number of facts that were compared.
    ///
    /// # Errors
    /// See [`CompareError`].
    ///
    /// ```
    /// # use farfield_c_decl::{Declarations, Names, c_types};
    /// # use core::ffi::c_long;
    /// c_types! {
    ///     /// A duration.
    ///     fixed struct timespec {
    ///         tv_sec: c_long,
    ///         tv_nsec: c_long,
    ///     }
    /// }
    /// let time = Declarations { types: &[TYPES], ..Declarations::new(&["time.h"], "libc6-dev", Names::Tags) };
    /// // Size and alignment; offset, size and type of each field.
    /// assert_eq!(time.compare()?, 2 + 2 * 3);
    /// # Ok::<(), farfield_c_decl::CompareError>(())
    /// ```
    pub fn compare(&self) -> Result<usize, CompareError> {
        let headers = || self.headers.join(", ");
        self.compile("").map_err(|complaint| CompareError::NoHeaders {
            headers: headers(),
            packages: self.packages,
            complaint,
        })?;
        let facts = self.facts();
        let program: String = facts
            .iter()
            .map(|Fact { what, condition }| format!("_Static_assert({condition}, \"{what}\");\n"))
            .collect();
        self.compile(&program).map_err(|complaint| CompareError::Differ { headers: headers(), complaint })?;
        Ok(facts.len())
    }

    /// The C spelling of a type as it stands in a declaration; `None` if it is [`Skipped`](crate::Skipped) there. An
    /// unknown type is a `struct` that stays opaque here.
    ///
    /// # Panics
    /// The text is no type that can be spelled: an argument without a name, or a function as the argument of another.
    ///
    /// ```
    /// # use farfield_c_decl::{Declarations, Names};
    /// let declarations = Declarations::new(&["locale.h"], "libc6-dev", Names::Tags);
    /// assert_eq!(declarations.spelling("[c_char; 8]").as_deref(), Some("__typeof__(char[8])"));
    /// assert_eq!(declarations.spelling("*mut lconv").as_deref(), Some("__typeof__(struct lconv) *"));
    /// assert_eq!(declarations.spelling("Skipped<u64>"), None);
    /// ```
    #[must_use]
    pub fn spelling(&self, rust: &str) -> Option<String> {
        // The compiler's text of a type may be broken into lines.
        let rust = rust.split_whitespace().collect::<Vec<_>>().join(" ");
        let rust = rust.as_str();
        let unclear = || panic!("`{rust}` has no spelling in C");
        if rust == "SkippedFn" || rust.starts_with("Skipped<") {
            return None;
        }
        if let Some(target) = rust.strip_prefix("*mut ") {
            return Some(format!("__typeof__({}) *", self.spelling(target)?));
        }
        if let Some(target) = rust.strip_prefix("*const ") {
            return Some(format!("const __typeof__({}) *", self.spelling(target)?));
        }
        if let Some(array) = rust.strip_prefix('[') {
            let array = array.strip_suffix(']').and_then(|array| array.rsplit_once(';'));
            let (element, length) = array.unwrap_or_else(unclear);
            return Some(format!("__typeof__({}[{}])", self.spelling(element)?, length.trim()));
        }
        if rust.starts_with("Option<") {
            let function = rust.split_once("fn(").and_then(|(_, function)| function.rsplit_once(')'));
            let (arguments, result) =
                function.filter(|(arguments, _)| !arguments.contains('(')).unwrap_or_else(unclear);
            let result = result.trim_end_matches(['>', ',', ' ']).trim();
            let result = self.spelling(result.strip_prefix("->").unwrap_or(result))?;
            let arguments = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
            let arguments = arguments.map(|argument| argument.split_once(": ").unwrap_or_else(unclear).1);
            let arguments: Option<Vec<_>> = arguments.map(|argument| self.spelling(argument)).collect();
            return Some(function_type(&result, &arguments?));
        }
        let name = rust.strip_prefix("libc::").unwrap_or(rust);
        if let Some((_, c)) = C_NAMES.iter().chain(self.aliases).find(|(of, _)| *of == name) {
            return Some((*c).to_owned());
        }
        if let Some(declared) = self.types().find(|declared| declared.name == name) {
            return Some(self.type_name(declared));
        }
        match self.constants().find(|declared| declared.name == name) {
            Some(Constants { kind: Kind::Enum, .. }) => Some(self.named("enum", name)),
            Some(flags) => self.spelling(flags.rust_type),
            None => Some(format!("struct {name}")),
        }
    }

    fn types(&self) -> impl Iterator<Item = &'static Type> {
        self.types.iter().copied().flatten()
    }

    fn constants(&self) -> impl Iterator<Item = &'static Constants> {
        self.constants.iter().copied().flatten()
    }

    fn functions(&self) -> impl Iterator<Item = &'static Function> {
        self.functions.iter().copied().flatten()
    }

    fn named(&self, keyword: &str, name: &str) -> String {
        match self.names {
            Names::Tags => format!("{keyword} {name}"),
            Names::Typedefs => name.to_owned(),
        }
    }

    fn type_name(&self, of: &Type) -> String {
        of.spelling.map_or_else(|| self.named(of.keyword, of.name), str::to_owned)
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = Vec::new();
        self.types().for_each(|of| self.facts_of_type(of, &mut facts));
        self.constants()
            .filter(|of| of.kind != Kind::Newer || of.values.first().is_none_or(|(name, _)| self.is_declared(name)))
            .for_each(|of| self.facts_of_constants(of, &mut facts));
        let functions = self.functions().filter(|of| !of.optional || self.is_declared(&format!("&{}", of.name)));
        facts.extend(functions.map(|of| self.fact_of_function(of)));
        facts
    }

    fn facts_of_type(&self, of: &Type, facts: &mut Vec<Fact>) {
        let (name, c) = (of.name, self.type_name(of));
        let (what, size) = (format!("size of {name}"), format!("sizeof({c})"));
        facts.push(match of.growth {
            Growth::Fixed => Fact::equal(&what, &size, of.size as i128),
            Growth::Growing | Growth::Upward => {
                Fact::new(format!("{what} is {} or more", of.size), format!("{size} >= {}", of.size))
            }
        });
        facts.push(Fact::equal(&format!("alignment of {name}"), &format!("_Alignof({c})"), of.align as i128));
        for &Field { path, rust_type, offset, size } in of.fields {
            let field = format!("{name}.{path}");
            facts.push(match of.growth {
                Growth::Upward => {
                    let distance = format!("sizeof({c}) - offsetof({c}, {path})");
                    Fact::equal(&format!("offset of {field} from the end"), &distance, (of.size - offset) as i128)
                }
                Growth::Fixed | Growth::Growing => {
                    Fact::equal(&format!("offset of {field}"), &format!("offsetof({c}, {path})"), offset as i128)
                }
            });
            let place = format!("(({c} *)0)->{path}");
            facts.push(Fact::equal(&format!("size of {field}"), &format!("sizeof({place})"), size as i128));
            if let Some(c_type) = self.spelling(rust_type) {
                facts.push(Fact::same_type(&field, &place, &c_type));
            }
        }
    }

    fn facts_of_constants(&self, of: &Constants, facts: &mut Vec<Fact>) {
        if of.kind == Kind::Enum {
            let size = format!("sizeof({})", self.named("enum", of.name));
            facts.push(Fact::equal(&format!("size of {}", of.name), &size, of.size as i128));
        }
        facts.extend(of.values.iter().map(|&(name, value)| Fact::equal(name, name, value)));
    }

    fn fact_of_function(&self, of: &Function) -> Fact {
        let spelling = |rust| self.spelling(rust).expect("functions have no skipped arguments and results");
        let arguments: Vec<_> = of.arguments.iter().map(|argument| spelling(argument)).collect();
        let c_type = function_type(&spelling(of.result), &arguments);
        Fact::same_type(of.name, &format!("&{}", of.name), &c_type)
    }

    /// Whether these headers declare what only newer ones have.
    fn is_declared(&self, expression: &str) -> bool {
        let declared = self.compile(&format!("_Static_assert(sizeof({expression}), \"\");\n")).is_ok();
        if !declared {
            eprintln!("these headers are too old for {expression}: not compared");
        }
        declared
    }

    /// Compiles a program that includes the headers, without its code. The error is the compiler's complaint.
    fn compile(&self, program: &str) -> Result<(), String> {
        let mut source = String::from("#define _GNU_SOURCE\n#include <stddef.h>\n#include <stdint.h>\n");
        source.extend(self.headers.iter().map(|header| format!("#include <{header}>\n")));
        // Some functions hide behind macros of their names.
        source.extend(self.functions().map(|function| format!("#undef {}\n", function.name)));
        source += program;
        let mut cc = Command::new("cc");
        let cc = cc.env("LC_ALL", "C").args(["-fsyntax-only", "-w", "-x", "c", "-"]);
        let cc = cc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = cc.spawn().map_err(|error| format!("cc: {error}"))?;
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        // A compiler that stopped reading reports why.
        let _ = stdin.write_all(source.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(|error| format!("cc: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }
}

/// The C type of a pointer to a function.
fn function_type(result: &str, arguments: &[String]) -> String {
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("__typeof__({result} (*)({arguments}))")
}

//! Compares every declaration of this crate with the C headers of this machine.
//!
//! A C program prints the size and alignment of every type, offset, size and type of every field, the value of every
//! constant, and whether every function has the type that we call it by. The expected output stands beside each line.
//!
//! A machine without headers or compiler passes and says so, unless `FARFIELD_NEED_HEADERS=1`. Headers in another place
//! are compared with by `CPATH=DIR`.

use std::env;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::{Ucp, UcpVersion, Ucs, ucp, ucs};

/// A struct or union that `c_types` declared.
pub(crate) struct Type {
    pub(crate) name: &'static str,
    pub(crate) spelling: &'static str,
    pub(crate) growth: Growth,
    pub(crate) size: usize,
    pub(crate) align: usize,
    pub(crate) fields: &'static [Field],
}

/// See `c_types`.
#[allow(non_camel_case_types, reason = "the words of the macro")]
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Growth {
    fixed,
    growing,
}

pub(crate) struct Field {
    pub(crate) path: &'static str,
    pub(crate) rust_type: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A group that `c_constants` declared.
pub(crate) struct Constants {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) rust_type: &'static str,
    pub(crate) size: usize,
    pub(crate) values: &'static [(&'static str, i128)],
}

/// A function that `c_functions` declared.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) result: &'static str,
}

fn types() -> impl Iterator<Item = &'static Type> {
    ucp::TYPES.iter()
}

fn constants() -> impl Iterator<Item = &'static Constants> {
    [ucs::CONSTANTS, ucp::CONSTANTS].into_iter().flatten()
}

fn functions() -> impl Iterator<Item = &'static Function> {
    [Ucs::FUNCTIONS, UcpVersion::FUNCTIONS, Ucp::FUNCTIONS].into_iter().flatten()
}

/// A number that C must print.
struct Fact {
    what: String,
    expression: String,
    expected: i128,
    /// A larger number is right too.
    at_least: bool,
}

fn exactly(what: String, expression: String, expected: i128) -> Fact {
    Fact { what, expression, expected, at_least: false }
}

fn facts_of_type(of: &Type, facts: &mut Vec<Fact>) {
    let (name, c) = (of.name, of.spelling);
    let mut size = exactly(format!("size of {name}"), format!("sizeof({c})"), of.size as i128);
    size.at_least = of.growth != Growth::fixed;
    facts.push(size);
    facts.push(exactly(format!("alignment of {name}"), format!("_Alignof({c})"), of.align as i128));
    for field in of.fields {
        let path = field.path;
        let offset = format!("offsetof({c}, {path})");
        facts.push(exactly(format!("offset of {name}.{path}"), offset, field.offset as i128));
        let place = format!("(({c} *)0)->{path}");
        facts.push(exactly(format!("size of {name}.{path}"), format!("sizeof({place})"), field.size as i128));
        if let Some(c_type) = c_type(field.rust_type) {
            let what = format!("{name}.{path} is {c_type}");
            let same = format!("__builtin_types_compatible_p(__typeof__({place}), {c_type})");
            facts.push(exactly(what, same, 1));
        }
    }
}

fn facts_of_constants(of: &Constants, facts: &mut Vec<Fact>) {
    if of.kind == "enum" {
        let what = format!("size of {}", of.name);
        facts.push(exactly(what, format!("sizeof({})", of.name), of.size as i128));
    }
    for &(name, value) in of.values {
        facts.push(exactly(name.to_owned(), name.to_owned(), value));
    }
}

fn fact_of_function(of: &Function) -> Fact {
    let all_known = "the types of functions are all known to c_type";
    let arguments: Vec<_> = of.arguments.iter().map(|argument| c_type(argument).expect(all_known)).collect();
    let result = c_type(of.result).expect(all_known);
    let c = function_type(&result, &arguments);
    exactly(format!("{} is {c}", of.name), format!("__builtin_types_compatible_p(__typeof__(&{}), {c})", of.name), 1)
}

/// The C type of a pointer to a function.
fn function_type(result: &str, arguments: &[String]) -> String {
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("__typeof__({result} (*)({arguments}))")
}

/// The C spelling of a type as it stands in a declaration; `None` if it is skipped there.
fn c_type(rust: &str) -> Option<String> {
    // The compiler's text of a type may be broken into lines.
    let rust = rust.split_whitespace().collect::<Vec<_>>().join(" ");
    let rust = rust.as_str();
    if rust.starts_with("Skipped") {
        return None;
    }
    if let Some(target) = rust.strip_prefix("*mut ") {
        return Some(format!("__typeof__({}) *", c_type(target)?));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return Some(format!("const __typeof__({}) *", c_type(target)?));
    }
    if let Some(array) = rust.strip_prefix('[') {
        let (element, length) = array.strip_suffix(']')?.rsplit_once(';')?;
        return Some(format!("__typeof__({}[{}])", c_type(element)?, length.trim()));
    }
    if rust.starts_with("Option<") {
        let (arguments, result) = rust.split_once("fn(")?.1.rsplit_once(')')?;
        let result = result.trim().trim_end_matches(['>', ',']).trim();
        let result = c_type(result.strip_prefix("->").unwrap_or(result))?;
        let arguments = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
        let arguments: Option<Vec<_>> = arguments.map(|argument| c_type(argument.split_once(": ")?.1)).collect();
        return Some(function_type(&result, &arguments?));
    }
    let name = rust.strip_prefix("libc::").unwrap_or(rust);
    let c = match name {
        "" => "void",
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "i8" => "int8_t",
        "ucs_status_ptr_t" => name,
        _ => {
            if let Some(declared) = types().find(|declared| declared.name == name) {
                return Some(declared.spelling.to_owned());
            }
            return match constants().find(|declared| declared.name == name) {
                Some(Constants { kind: "enum", .. }) => Some(name.to_owned()),
                Some(flags) => c_type(flags.rust_type),
                // What libc declares.
                None if name == "FILE" => Some(name.to_owned()),
                // What stays opaque here.
                None => Some(format!("struct {name}")),
            };
        }
    };
    Some(c.to_owned())
}

/// The task of the C compiler.
enum Compile<'a> {
    Check,
    To(&'a std::path::Path),
}

/// Compiles a program that includes the headers. The error is the compiler's complaint.
fn compile(body: &str, how: Compile<'_>) -> Result<(), String> {
    let source = format!(
        "#define _GNU_SOURCE\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n\
         #include <ucp/api/ucp.h>\n{body}"
    );
    let mut cc = Command::new("cc");
    match how {
        Compile::Check => cc.arg("-fsyntax-only"),
        Compile::To(path) => cc.arg("-o").arg(path),
    };
    let cc = cc.args(["-w", "-x", "c", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = cc.spawn().map_err(|error| format!("cc: {error}"))?;
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    // A compiler that stopped reading says why itself.
    let _ = stdin.write_all(source.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn the_declarations_are_those_of_the_headers() {
    if let Err(complaint) = compile("int main(void) { return 0; }\n", Compile::Check) {
        let what = "the header ucp/api/ucp.h (package libucx-dev, on Fedora ucx-devel) cannot be compiled";
        assert!(env::var_os("FARFIELD_NEED_HEADERS").is_none_or(|value| value != "1"), "{what}: {complaint}");
        eprintln!("{what}: the declarations are not compared with them\n{complaint}");
        return;
    }
    let mut facts = Vec::new();
    types().for_each(|of| facts_of_type(of, &mut facts));
    constants().for_each(|of| facts_of_constants(of, &mut facts));
    facts.extend(functions().map(fact_of_function));

    let mut program = String::from("int main(void) {\n");
    for fact in &facts {
        writeln!(program, "    printf(\"%lld\\n\", (long long)({}));", fact.expression).unwrap();
    }
    program += "    return 0;\n}\n";
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("layout");
    compile(&program, Compile::To(&path)).unwrap_or_else(|complaint| panic!("{complaint}"));
    let output = Command::new(&path).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).expect("the program prints numbers");
    let printed: Vec<i128> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(printed.len(), facts.len());

    let wrong = facts
        .iter()
        .zip(&printed)
        .filter(|(fact, printed)| if fact.at_least { **printed < fact.expected } else { **printed != fact.expected });
    let wrong: Vec<_> = wrong
        .map(|(fact, printed)| format!("{}: {printed} in C, {} here ({})", fact.what, fact.expected, fact.expression))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
    eprintln!("{} facts about {} types are as in the headers", facts.len(), types().count());
}

#[test]
fn rust_types_are_spelled_in_c() {
    let spelled = |rust| c_type(rust).unwrap();
    assert_eq!(spelled("*mut *mut ucp_worker"), "__typeof__(__typeof__(struct ucp_worker) *) *");
    assert_eq!(spelled("*const c_void"), "const __typeof__(void) *");
    assert_eq!(spelled("[c_char; 32]"), "__typeof__(char[32])");
    assert_eq!(spelled("ucs_status_t"), "ucs_status_t");
    assert_eq!(spelled("ucp_op_attr_t"), "uint32_t");
    assert_eq!(spelled("*mut libc::FILE"), "__typeof__(FILE) *");
    assert_eq!(
        spelled("Option<unsafe extern \"C\" fn(arg: *mut c_void, status: ucs_status_t) -> c_int>"),
        "__typeof__(int (*)(__typeof__(void) *, ucs_status_t))"
    );
    assert_eq!(spelled("Option<unsafe extern \"C\" fn(n: usize)>"), "__typeof__(void (*)(size_t))");
    assert_eq!(c_type("SkippedFn"), None);
}

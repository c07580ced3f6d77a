//! Clients of libraries that have implementations.

use super::*;

/// The libraries, and the implementations of each that are built in and sound.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, random::{CLIENTS, client}};
/// for (library, implementations) in CLIENTS {
///     let test = Test::parse("client.litmus", &client(library, 1), &Models::builtin())?;
///     assert!(test.libraries().any(|name| name == library) && !implementations.is_empty());
/// }
/// # Ok::<(), mowgli::text::Error>(())
/// ```
pub const CLIENTS: [(&str, &[&str]); 5] = [
    ("sv", &["sv_rdma"]),
    ("bal", &["bal_sv"]),
    ("rbl", &["rbl_sv"]),
    ("msw", &["msw_hash"]),
    ("rdmawait", &["rdmawait_rdmatso"]),
];

/// A random client of one of [`CLIENTS`], so small that its expansion can be enumerated.
///
/// # Panics
/// If the library is none of them.
///
/// ```
/// use mowgli::random::client;
/// assert!(client("bal", 1).contains("BAR(b)"));
/// ```
pub fn client(library: &str, seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let body = match library {
        "sv" => shared_variables(&mut rng),
        "bal" => barrier(&mut rng),
        "rbl" => ring_buffer(&mut rng),
        "msw" => mixed_sizes(&mut rng),
        "rdmawait" => remote(&mut rng),
        other => panic!("`{other}` is none of the libraries of CLIENTS"),
    };
    let libraries = match library {
        "bal" => "rdmawait, bal",
        "rbl" => "rbl, sv",
        other => other,
    };
    format!("{libraries} client_{seed}\n\n{body}\nexists (true)\n")
}

/// A thread's text.
fn thread(number: usize, node: usize, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|line| format!("    {line};\n")).collect();
    format!("\nP{number}@{node} {{\n{lines}}}\n")
}

/// Threads on nodes of their own, that write and broadcast, and then read variables that others may have written.
fn shared_variables(rng: &mut Rng) -> String {
    let nodes = 2 + rng.below(2);
    let mut text = "{ shared x; shared y; }\n".to_owned();
    let mut value = 0;
    for number in 0..nodes {
        let others: Vec<String> = (1..=nodes).filter(|node| *node != 1 + number).map(|node| node.to_string()).collect();
        let others = if rng.below(3) == 0 { others[rng.below(others.len())].clone() } else { others.join(", ") };
        let mut lines = Vec::new();
        for call in 0..if nodes == 3 { 1 } else { 2 + rng.below(2) } {
            let name = rng.of(&["x", "y"]);
            value += 1;
            match rng.below(if call == 0 { 4 } else { 8 }) {
                0 => lines.push(format!("Write({name}, {value})")),
                1..4 => {
                    lines.push(format!("Write({name}, {value})"));
                    lines.push(format!("Bcast({}, {name}, {{{others}}})", rng.of(&["d", "e"])));
                }
                4 => lines.push(format!("Wait({})", rng.of(&["d", "e"]))),
                5 => lines.push(format!("GF({{{others}}})")),
                _ => lines.push(format!("let a{call} = Read({name})")),
            }
        }
        lines.push(format!("let z = Read({})", rng.of(&["x", "y"])));
        text += &thread(number, 1 + number, &lines);
    }
    text
}

/// Two nodes that put to each other and get from each other, wait or do not, and read their own memory.
fn remote(rng: &mut Rng) -> String {
    let mut text = "{ x1@1; y1@1 = 10; x2@2; y2@2 = 20; }\n".to_owned();
    for number in 0..2 {
        let (here, there) = (1 + number, 2 - number);
        let mut lines = Vec::new();
        for call in 0..2 + rng.below(2) {
            let (own, other) = (rng.of(&["x", "y"]), rng.of(&["x", "y"]));
            let tag = rng.of(&["d", "e"]);
            lines.push(match rng.below(if call == 0 { 5 } else { 8 }) {
                0 | 1 => format!("Put({tag}, {other}{there}, {own}{here})"),
                2 | 3 => format!("Get({tag}, {own}{here}, {other}{there})"),
                4 => format!("Write({own}{here}, {})", 1 + call + 10 * here),
                5 => format!("Rfence({there})"),
                _ => format!("Wait({tag})"),
            });
        }
        lines.push(format!("let a = Read({}{here})", rng.of(&["x", "y"])));
        text += &thread(number, here, &lines);
    }
    text
}

/// Puts, gets and writes before a barrier, and reads behind it; not all nodes take part.
fn barrier(rng: &mut Rng) -> String {
    let nodes = 2 + rng.below(2);
    let members = if nodes == 3 && rng.below(2) == 0 { "P0, P2" } else { "P0, P1" };
    let mut text = "{".to_owned();
    for node in 1..=nodes {
        write!(text, " x{node}@{node}; p{node}@{node} = {node};").expect("a string takes everything");
    }
    writeln!(text, " barrier b({members}); }}").expect("a string takes everything");
    for number in 0..nodes {
        let here = 1 + number;
        let other = 1 + rng.below(nodes);
        let mut lines = vec![match rng.below(4) {
            0 | 1 => format!("Put(d, x{other}, p{here})"),
            2 => format!("Get(d, p{here}, x{other})"),
            _ => format!("Write(x{here}, {})", 10 + here),
        }];
        if members.contains(&format!("P{number}")) {
            lines.push("BAR(b)".to_owned());
        }
        lines.push(format!("let a = Read({}{here})", rng.of(&["x", "x", "p"])));
        text += &thread(number, here, &lines);
    }
    text
}

/// One thread submits, and others receive; they pass their other observations through a shared variable.
fn ring_buffer(rng: &mut Rng) -> String {
    let readers = 1 + rng.below(2);
    let own = rng.below(3) == 0;
    let names: Vec<String> = (usize::from(!own)..=readers).map(|reader| format!("P{reader}")).collect();
    let mut text = format!("{{ ring r(P0, {}); shared x; }}\n", names.join(", "));
    for number in 0..=readers {
        let mut lines = Vec::new();
        for call in 0..1 + rng.below(2) {
            lines.push(match (rng.below(5), number) {
                (0, _) => format!("Write(x, {})", 10 + number),
                (1, _) => format!("let a{call} = Read(x)"),
                (_, 0) if !own || rng.below(2) == 0 => format!("let s{call} = Submit(r, {})", 1 + call),
                _ => format!("let b{call} = Receive(r)"),
            });
        }
        text += &thread(number, 1 + rng.below(2), &lines);
    }
    text
}

/// One thread writes and moves values of two words, and another checks that they are whole.
fn mixed_sizes(rng: &mut Rng) -> String {
    let mut text = "{ wide x@1 = (0, 0); wide y@2 = (0, 0); }\n".to_owned();
    let put = rng.below(2) == 0;
    let mut lines = vec!["Write(x, (1, 1))".to_owned()];
    if put {
        lines.push("Put(d, y, x)".to_owned());
        if rng.below(2) == 0 {
            lines.push("Wait(d)".to_owned());
        }
    }
    if rng.below(3) == 0 {
        lines.push("Write(x, (2, 2))".to_owned());
    }
    text += &thread(0, 1, &lines);
    let mut lines = Vec::new();
    if !put {
        lines.push("Get(d, y, x)".to_owned());
        if rng.below(4) > 0 {
            lines.push("Wait(d)".to_owned());
        }
    }
    if rng.below(4) == 0 {
        lines.push("Write(y, (3, 3))".to_owned());
    }
    lines.push("let a = TryRead(y)".to_owned());
    text += &thread(1, 2, &lines);
    text
}

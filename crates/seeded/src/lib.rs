//! Puts seeded bugs into copies of a crate's modules, at build time. The algorithms themselves are written without
//! them.
//!
//! A crate declares its mutants in a module, `src/mutants/vars.rs`, and describes the edits beside it, in
//! `src/mutants/vars.diff`. A hunk names its mutant and a file in `src`. There are no line numbers: the lines that
//! begin with a blank or a `-` must occur in the file exactly once, in this order.
//!
//! ```diff
//! @@ BARRIER_FENCE_FROM_ONE in objects/barrier.rs
//! -        let lost = node.fence_live_nodes(endpoint, node.members()).await.of(path)?;
//! +        let all = node.members().filter(|node| !ON || node.0 != 0);
//! +        let lost = node.fence_live_nodes(endpoint, all).await.of(path)?;
//! ```
//!
//! `ON` stands for the mutant's switch, `crate::mutants::vars::BARRIER_FENCE_FROM_ONE.is_on()`. An empty line ends a
//! hunk. A line that begins with `#` is a comment. All hunks are about the plain file. They may have lines of context
//! in common, but only one of them can change a line.
//!
//! The crate's build script calls [`build`], which writes the copies into `OUT_DIR`. `src/lib.rs` has a line
//! `#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]` in front of each `mod` with edits, and includes `seeded.rs`
//! otherwise, which declares the same modules. So clippy, rustdoc and editors read the plain files. Outside of the
//! edits every line of a copy has its number in the plain file.
//!
//! [`switch`] is for mistakes that `farfield-sweep`, a tool for Farfield's developers, puts in.

#![forbid(unsafe_code)]

pub mod switch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// In `src/lib.rs`, the line in front of a module that is copied.
const MARK: &str = "#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]";

/// For a build script of a crate with mutants: writes the copies, and sets the cfg `seeded`. In a build without debug
/// assertions it does nothing, as the switches do not exist there. Errors are those of the build.
pub fn build() {
    println!("cargo::rerun-if-changed=src");
    let folder = |name| PathBuf::from(env::var_os(name).expect("cargo sets it for a build script"));
    if env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_none() {
        return;
    }
    match seed(&folder("CARGO_MANIFEST_DIR").join("src"), &folder("OUT_DIR")) {
        Ok(()) => println!("cargo::rustc-cfg=seeded"),
        Err(errors) => errors.iter().for_each(|error| println!("cargo::error={error}")),
    }
}

/// Writes the copies of the modules that `lib.rs` marks, with all edits in them.
fn seed(src: &Path, out: &Path) -> Result<(), Vec<String>> {
    let failed = |error: io::Error| vec![error.to_string()];
    let mut files = BTreeMap::new();
    read(src, src, &mut files).map_err(failed)?;
    let modules = modules(&files["lib.rs"]);
    let (mut hunks, mut errors) = (BTreeMap::<String, Vec<Hunk>>::new(), Vec::new());
    for (table, text) in files.iter().filter(|(file, _)| file.ends_with(".diff")) {
        for hunk in read_table(table, text)? {
            hunks.entry(hunk.file.clone()).or_default().push(hunk);
        }
    }
    let names: Vec<&str> =
        modules.iter().filter_map(|module| module.strip_suffix(';')?.split(' ').next_back()).collect();
    let is_copied = |file: &str| names.contains(&file.split(['/', '.']).next().unwrap_or_default());
    let mut copies = vec![("seeded.rs".to_string(), modules.join("\n"))];
    for (file, text) in files.iter().filter(|(file, _)| is_copied(file)) {
        match apply(text, &hunks.remove(file).unwrap_or_default()) {
            Ok(copy) => copies.push((file.clone(), copy)),
            Err(more) => errors.extend(more),
        }
    }
    errors.extend(
        hunks
            .into_values()
            .flatten()
            .map(|hunk| format!("{}: `{}` is in no module that src/lib.rs marks with {MARK}", hunk.place, hunk.file)),
    );
    if !errors.is_empty() {
        return Err(errors);
    }
    copies.iter().try_for_each(|(file, copy)| write(&out.join(file), copy)).map_err(failed)
}

/// The files of a folder and those below it, by their paths below `src`.
fn read(src: &Path, folder: &Path, files: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(src, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "diff") {
            let name = path.strip_prefix(src).expect("it is in `src`").to_string_lossy().into_owned();
            files.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().expect("a file is in a folder"))?;
    fs::write(path, text)
}

/// The declarations of the modules that are copied.
fn modules(lib: &str) -> Vec<&str> {
    lib.lines().zip(lib.lines().skip(1)).filter(|(line, _)| *line == MARK).map(|(_, module)| module).collect()
}

/// An edit of one file.
struct Hunk {
    /// For messages: the table, the line in it, and the mutant.
    place: String,
    /// Its path in `src`.
    file: String,
    /// The lines, without their first byte: a blank, `-` or `+`.
    lines: Vec<(u8, String)>,
}

/// Reads a table, which is beside the module with the mutants.
fn read_table(table: &str, text: &str) -> Result<Vec<Hunk>, Vec<String>> {
    let module = table.trim_end_matches(".diff").replace('/', "::");
    let mut hunks: Vec<(Hunk, String)> = Vec::new();
    let (mut errors, mut is_open) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("src/{table}:{number}");
        match (line.as_bytes().first(), hunks.last_mut().filter(|_| is_open)) {
            (None, _) => is_open = false,
            (Some(b'#'), _) => {}
            (Some(b'@'), _) => match line.trim_start_matches("@@ ").split_once(" in ") {
                Some((mutant, file)) => {
                    let place = format!("{place}: {mutant}");
                    let hunk = Hunk { place, file: file.into(), lines: Vec::new() };
                    hunks.push((hunk, format!("crate::{module}::{mutant}.is_on()")));
                    is_open = true;
                }
                None => errors.push(format!("{place}: a hunk begins with `@@ MUTANT in FILE`")),
            },
            (Some(b'+'), _) if line.contains("//") => {
                errors.push(format!("{place}: a line that is added has no comment"))
            }
            (Some(first @ (b' ' | b'-' | b'+')), Some((hunk, switch))) => {
                let line = if *first == b'+' { with_switch(&line[1..], switch) } else { line[1..].into() };
                hunk.lines.push((*first, line));
            }
            _ => errors.push(format!("{place}: not a line of a hunk, which begins with a blank, `-` or `+`")),
        }
    }
    if errors.is_empty() { Ok(hunks.into_iter().map(|(hunk, _)| hunk).collect()) } else { Err(errors) }
}

/// The line with the switch in place of each `ON`.
fn with_switch(line: &str, switch: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let words = line.split_inclusive(|c| !is_of_name(c));
    let replaced = words.map(|word| match word.strip_prefix("ON") {
        Some(rest) if !rest.starts_with(is_of_name) => format!("{switch}{rest}"),
        _ => word.into(),
    });
    replaced.collect()
}

/// The text with the edits.
fn apply(text: &str, hunks: &[Hunk]) -> Result<String, Vec<String>> {
    let plain: Vec<&str> = text.lines().chain([""]).collect();
    let mut lines: Vec<Line> = plain.iter().map(|line| Line { text: line.to_string(), ..Line::default() }).collect();
    let errors: Vec<String> = hunks.iter().filter_map(|hunk| hunk.change(&plain, &mut lines).err()).collect();
    let copy: String = lines.into_iter().map(|line| line.added + &line.text + "\n").collect();
    if errors.is_empty() { Ok(copy) } else { Err(errors) }
}

/// A line of a copy, in place of the plain file's line of this number.
#[derive(Default)]
struct Line {
    /// What hunks have put in front of it.
    added: String,
    text: String,
    is_removed: bool,
}

impl Hunk {
    fn change(&self, plain: &[&str], lines: &mut [Line]) -> Result<(), String> {
        let (place, file) = (&self.place, &self.file);
        let was: Vec<&str> = self.lines.iter().filter(|line| line.0 != b'+').map(|line| line.1.as_str()).collect();
        let starts: Vec<usize> = (0..plain.len()).filter(|at| plain[*at..].starts_with(&was)).collect();
        let [start] = starts[..] else {
            let count = starts.len();
            return Err(format!(
                "{place}: its lines are {count} times in src/{file}, not once: adapt them, or add context"
            ));
        };
        // The first of the lines that are removed together has the lines instead.
        let (mut at, mut removed) = (start, None::<usize>);
        for (first, line) in &self.lines {
            match (first, removed) {
                (b'+', Some(removed)) => lines[removed].text += &format!("{} ", line.trim()),
                (b'+', None) => lines[at].added += &format!("{} ", line.trim()),
                (b'-', _) if lines[at].is_removed => {
                    return Err(format!("{place}: another hunk changes the line `{}`, too", line.trim()));
                }
                (b'-', _) => {
                    (lines[at].text, lines[at].is_removed) = (String::new(), true);
                    removed = removed.or(Some(at));
                    at += 1;
                }
                _ => {
                    removed = None;
                    at += 1;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

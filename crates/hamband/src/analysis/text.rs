//! Positions in the text of a specification, and its errors.

use std::fmt;

/// A place in a text, counted from 1.
///
/// ```
/// # use farfield_hamband::analysis::Position;
/// // The order is that of the text.
/// assert!(Position { line: 1, column: 9 } < Position { line: 2, column: 1 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

/// A mistake in a specification: where it is, what it is, and what to do.
///
/// ```
/// use farfield_hamband::analysis::{Position, Specification};
///
/// let text = "type Counter {\n  state { value: int = 0 }\n  update add(n: int) { valeu := value + n }\n}\n";
/// let error = Specification::parse("counter.wrdt", text).unwrap_err();
/// assert_eq!(error.position, Position { line: 3, column: 24 });
/// assert!(error.to_string().starts_with("counter.wrdt:3:24: `valeu` is no state variable"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError {
    /// The file.
    pub file: String,
    /// Where in it.
    pub position: Position,
    /// The mistake.
    pub what: String,
    /// What to do about it.
    pub help: String,
    /// The line of the text.
    pub line: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpecError { file, position: Position { line: number, column }, what, help, line } = self;
        writeln!(f, "{file}:{number}:{column}: {what}: {help}")?;
        let margin = " ".repeat(number.to_string().len());
        // A tab in the line stays one in front of the caret, so that both have the same width.
        let before = |character| if character == '\t' { '\t' } else { ' ' };
        let indent: String = line.chars().take(*column as usize - 1).map(before).collect();
        write!(f, "{number} | {line}\n{margin} | {indent}^")
    }
}

impl std::error::Error for SpecError {}

/// A mistake in a file that is not known yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mistake {
    pub(crate) at: Position,
    pub(crate) what: String,
    pub(crate) help: String,
}

impl Mistake {
    pub(crate) fn new(at: Position, what: impl Into<String>, help: impl Into<String>) -> Mistake {
        Mistake { at, what: what.into(), help: help.into() }
    }

    /// With the file and the line of its text.
    pub(crate) fn within(self, file: &str, text: &str) -> SpecError {
        let line = text.lines().nth(self.at.line as usize - 1).unwrap_or("").to_owned();
        SpecError { file: file.to_owned(), position: self.at, what: self.what, help: self.help, line }
    }
}

pub(crate) type Parsed<T> = Result<T, Mistake>;

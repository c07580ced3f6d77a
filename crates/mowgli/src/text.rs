//! The text of models and litmus tests: positions, errors and tokens.

use std::fmt;
use std::rc::Rc;

/// A place in a text, counted from 1.
///
/// ```
/// # use mowgli::text::Position;
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

/// An error in a model or a litmus test, with its place.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, text::Position};
/// let error = Test::parse("t.litmus", "x86tso t { x@1; } P0@1 { Wirte(x, 1); }", &Models::builtin()).unwrap_err();
/// assert_eq!((error.file.as_str(), error.position), ("t.litmus", Position { line: 1, column: 26 }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The file, or the model's name.
    pub file: String,
    /// Where in it.
    pub position: Position,
    /// The error.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { file, position: Position { line, column }, what } = self;
        write!(f, "{file}:{line}:{column}: {what}")
    }
}

impl std::error::Error for Error {}

/// A result with the position of an error.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, text};
/// fn name_of(test: &str) -> text::Result<String> {
///     Ok(Test::parse("t.litmus", test, &Models::builtin())?.name)
/// }
/// assert_eq!(name_of("x86tso SB { x@1; } P0@1 { Write(x, 1); } exists (x=1)")?, "SB");
/// assert!(name_of("x86tso SB { x@1; } P0@1 { Wirte(x, 1); } exists (x=1)").is_err());
/// # Ok::<(), mowgli::text::Error>(())
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// A part of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// Letters, digits, `_` and `'`, not beginning with a digit.
    Name(String),
    Number(i64),
    /// In double quotes, on one line or several.
    Text(String),
    Symbol(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Number(number) => write!(f, "`{number}`"),
            Token::Text(_) => f.write_str("a text in quotes"),
            Token::Symbol(symbol) => write!(f, "`{symbol}`"),
            Token::End => f.write_str("the end"),
        }
    }
}

/// All symbols; one that is a prefix of another follows it.
const SYMBOLS: &[&str] = &[
    "^-1", "^+", "^*", "^?", "/\\", "\\/", "->", "==", "!=", "<=", ">=", "{", "}", "(", ")", "[", "]", ";", ",", ":",
    "=", "<", ">", "+", "-", "*", "\\", "|", "&", "~", "@", ".",
];

/// The tokens of a text, and where the reader is.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    file: Rc<str>,
    tokens: Rc<Vec<(Token, Position)>>,
    at: usize,
    depth: usize,
}

/// How deep a text may nest: more is a mistake, and would only exhaust the stack.
const DEPTH_MAX: usize = 64;

impl Reader {
    pub(crate) fn new(file: &str, text: &str) -> Result<Reader> {
        let mut tokens = Vec::new();
        let mut lexer = Lexer { file, rest: text, position: Position { line: 1, column: 1 } };
        loop {
            lexer.skip_blanks()?;
            let position = lexer.position;
            let token = lexer.token()?;
            let is_end = token == Token::End;
            tokens.push((token, position));
            if is_end {
                return Ok(Reader { file: file.into(), tokens: Rc::new(tokens), at: 0, depth: 0 });
            }
        }
    }

    pub(crate) fn position(&self) -> Position {
        self.tokens[self.at].1
    }

    pub(crate) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(crate) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.at += 1;
        }
        token
    }

    pub(crate) fn error(&self, position: Position, what: impl Into<String>) -> Error {
        Error { file: self.file.to_string(), position, what: what.into() }
    }

    /// Something else was expected here.
    pub(crate) fn unexpected(&self, expected: &str) -> Error {
        self.error(self.position(), format!("{expected} is expected here, and this is {}", self.peek()))
    }

    /// Takes a symbol if it is next.
    pub(crate) fn takes(&mut self, symbol: &str) -> bool {
        let takes = matches!(self.peek(), Token::Symbol(next) if *next == symbol);
        self.at += usize::from(takes);
        takes
    }

    /// Takes a word if it is next.
    pub(crate) fn takes_word(&mut self, word: &str) -> bool {
        let takes = self.is_word(word);
        self.at += usize::from(takes);
        takes
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(next) if next == word)
    }

    pub(crate) fn expect(&mut self, symbol: &str) -> Result<()> {
        if self.takes(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    pub(crate) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.takes_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    pub(crate) fn name(&mut self, what: &str) -> Result<String> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    pub(crate) fn number(&mut self, what: &str) -> Result<i64> {
        match *self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// The items between separators, until a closing symbol, which is taken too.
    pub(crate) fn list<T>(
        &mut self,
        separator: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.takes(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.takes(close) {
                return Ok(items);
            }
            if !self.takes(separator) {
                return Err(self.unexpected(&format!("`{separator}` or `{close}`")));
            }
        }
    }

    /// A token further on; 0 is the next.
    pub(crate) fn peek_at(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].0
    }

    /// The position of the reader, for a return [to it](Self::back_to).
    pub(crate) fn mark(&self) -> usize {
        self.at
    }

    pub(crate) fn back_to(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Continues behind the brace that closes the one that was just taken.
    pub(crate) fn skip_block(&mut self) -> Result<()> {
        let position = self.position();
        let mut open = 1;
        while open > 0 {
            match self.next() {
                Token::Symbol("{") => open += 1,
                Token::Symbol("}") => open -= 1,
                Token::End => return Err(self.error(position, "this block has no end")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Something begins that may contain itself.
    pub(crate) fn enter(&mut self) -> Result<()> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(self.position(), format!("this nests deeper than {DEPTH_MAX} levels")));
        }
        self.depth += 1;
        Ok(())
    }

    /// It has ended.
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Reads something that may contain itself.
    pub(crate) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.enter()?;
        let read = read(self);
        self.leave();
        read
    }
}

struct Lexer<'a> {
    file: &'a str,
    rest: &'a str,
    position: Position,
}

impl Lexer<'_> {
    fn error(&self, what: impl Into<String>) -> Error {
        Error { file: self.file.to_owned(), position: self.position, what: what.into() }
    }

    /// Skips so many bytes.
    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        for skipped in skipped.chars() {
            match skipped {
                '\n' => self.position = Position { line: self.position.line + 1, column: 1 },
                _ => self.position.column += 1,
            }
        }
        self.rest = rest;
    }

    /// Blanks, and comments: from `//` to the end of the line, or between `(*` and `*)`.
    fn skip_blanks(&mut self) -> Result<()> {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            if blanks > 0 {
                self.skip(blanks);
            } else if self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("(*") {
                let end = self.rest.find("*)").ok_or_else(|| self.error("this comment has no end"))?;
                self.skip(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Token> {
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        let span = |accepts: fn(char) -> bool| self.rest.find(|next| !accepts(next)).unwrap_or(self.rest.len());
        if first.is_ascii_digit() {
            let len = span(|next| next.is_ascii_alphanumeric());
            let number = self.rest[..len].parse();
            let number = number.map_err(|_| self.error(format!("`{}` is no number", &self.rest[..len])))?;
            self.skip(len);
            return Ok(Token::Number(number));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let len = span(|next| next.is_ascii_alphanumeric() || next == '_' || next == '\'');
            let name = self.rest[..len].to_owned();
            self.skip(len);
            return Ok(Token::Name(name));
        }
        if first == '"' {
            let len = self.rest[1..].find('"').ok_or_else(|| self.error("this text in quotes has no end"))?;
            let text = self.rest[1..=len].split_whitespace().collect::<Vec<_>>().join(" ");
            self.skip(len + 2);
            return Ok(Token::Text(text));
        }
        let symbol = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol));
        let symbol = symbol.ok_or_else(|| self.error(format!("what is `{first}`?")))?;
        self.skip(symbol.len());
        Ok(Token::Symbol(symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_where_they_are() {
        let text = "let a' = rf^-1; // so\n(* a\n b *) \"x  y\"\n  12 /\\ é";
        let error = Reader::new("m", text).expect_err("`é` is no token");
        assert_eq!(error.to_string(), "m:4:9: what is `é`?");
        let mut reader = Reader::new("m", &text[..text.len() - 2]).unwrap();
        assert!(reader.takes_word("let"));
        assert_eq!(reader.name("a name").unwrap(), "a'");
        assert_eq!(reader.unexpected("a name").to_string(), "m:1:8: a name is expected here, and this is `=`");
        reader.expect("=").unwrap();
        assert!(reader.takes_word("rf") && reader.takes("^-1") && reader.takes(";"));
        assert_eq!((reader.position(), reader.next()), (Position { line: 3, column: 7 }, Token::Text("x y".into())));
        assert_eq!((reader.next(), reader.takes("/\\")), (Token::Number(12), true));
        assert_eq!((reader.next(), reader.next()), (Token::End, Token::End));
    }

    #[test]
    fn malformed_tokens_are_errors() {
        for text in ["\"a", "(* a", "99999999999999999999", "1a"] {
            assert!(Reader::new("m", text).is_err(), "{text}");
        }
    }
}

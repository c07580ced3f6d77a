//! The words of a specification.

use std::fmt;

use super::text::{Mistake, Parsed, Position};

/// A word of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// Letters, digits and `_`, not beginning with a digit. Keywords are names, too.
    Name(String),
    Number(i64),
    /// In double quotes, on one line.
    Text(String),
    Symbol(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Number(number) => write!(f, "`{number}`"),
            Token::Text(text) => write!(f, "\"{text}\""),
            Token::Symbol(symbol) => write!(f, "`{symbol}`"),
            Token::End => f.write_str("the end of the file"),
        }
    }
}

/// All symbols; one that is a prefix of another follows it.
const SYMBOLS: &[&str] =
    &[":=", "->", "!=", "<=", ">=", "{", "}", "(", ")", "[", "]", ",", ":", "=", "<", ">", "+", "-", "*", "|", "."];

/// Cuts a text into words. The last one is [`Token::End`].
pub(crate) fn tokens(text: &str) -> Parsed<Vec<(Token, Position)>> {
    let mut tokens = Vec::new();
    let mut end = Position { line: 1, column: 1 };
    for (line, number) in text.lines().zip(1..) {
        let characters: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            let position = Position { line: number, column: at as u32 + 1 };
            let rest = &characters[at..];
            if rest[0].is_whitespace() {
                at += 1;
                continue;
            }
            if rest.starts_with(&['/', '/']) {
                break;
            }
            let (token, length) = token(rest, position)?;
            tokens.push((token, position));
            at += length;
        }
        end = Position { line: number, column: characters.len() as u32 + 1 };
    }
    tokens.push((Token::End, end));
    Ok(tokens)
}

/// The word at the beginning of `rest`, and its length.
fn token(rest: &[char], at: Position) -> Parsed<(Token, usize)> {
    let first = rest[0];
    let length_of = |belongs: &dyn Fn(char) -> bool| rest.iter().take_while(|c| belongs(**c)).count();
    if first.is_ascii_alphabetic() || first == '_' {
        let length = length_of(&|c| c.is_ascii_alphanumeric() || c == '_');
        return Ok((Token::Name(rest[..length].iter().collect()), length));
    }
    if first.is_ascii_digit() {
        let length = length_of(&|c| c.is_ascii_digit() || c == '_');
        let digits: String = rest[..length].iter().filter(|c| **c != '_').collect();
        let too_large = || Mistake::new(at, format!("the number {digits} is too large"), "write one below 2^63");
        return Ok((Token::Number(digits.parse().map_err(|_| too_large())?), length));
    }
    if first == '"' {
        let Some(length) = rest[1..].iter().position(|c| *c == '"') else {
            return Err(Mistake::new(at, "this text has no end", "close it with `\"` on the same line"));
        };
        return Ok((Token::Text(rest[1..=length].iter().collect()), length + 2));
    }
    let text: String = rest.iter().take(2).collect();
    match SYMBOLS.iter().find(|symbol| text.starts_with(**symbol)) {
        Some(symbol) => Ok((Token::Symbol(symbol), symbol.len())),
        None => Err(Mistake::new(at, format!("`{first}` means nothing here"), instead_of(&text))),
    }
}

/// What to write in place of an operator of other languages.
fn instead_of(text: &str) -> &'static str {
    match text {
        "&&" => "write `and`",
        "||" => "write `or`",
        _ if text.starts_with('!') => "write `not`",
        _ if text.starts_with('&') => "write `intersect` for sets, `and` for truth values",
        _ if text.starts_with('\\') => "write `minus` for sets",
        _ if text.starts_with(';') => "leave it out: clauses are separated by the words that begin them",
        _ if text.starts_with('/') => "there is no division; a comment begins with `//`",
        _ => "remove it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_positions() {
        let found = tokens("a := b // c\n  \"d e\" 1_000").expect("words");
        let at = |line, column| Position { line, column };
        assert_eq!(
            found,
            [
                (Token::Name("a".into()), at(1, 1)),
                (Token::Symbol(":="), at(1, 3)),
                (Token::Name("b".into()), at(1, 6)),
                (Token::Text("d e".into()), at(2, 3)),
                (Token::Number(1000), at(2, 9)),
                (Token::End, at(2, 14)),
            ]
        );
    }

    #[test]
    fn operators_of_other_languages_are_translated() {
        for (text, help) in [("a && b", "`and`"), ("a || b", "`or`"), ("!a", "`not`"), ("a;", "leave it out")] {
            // `|` alone is a symbol: two of them are read, and the parser refuses the second.
            match tokens(text) {
                Err(mistake) => assert!(mistake.help.contains(help), "{text}: {mistake:?}"),
                Ok(_) => assert_eq!(text, "a || b"),
            }
        }
        assert!(tokens("\"open").is_err_and(|mistake| mistake.what.contains("no end")));
        assert!(tokens("99999999999999999999").is_err_and(|mistake| mistake.what.contains("too large")));
    }
}

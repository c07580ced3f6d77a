//! The answers of the solver: S-expressions.

use std::collections::BTreeMap;

/// An S-expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sexpr {
    Atom(String),
    List(Vec<Sexpr>),
}

impl Sexpr {
    /// Reads the first one of a text.
    pub(crate) fn parse(text: &str) -> Option<Sexpr> {
        let mut open: Vec<Vec<Sexpr>> = Vec::new();
        let mut rest = text.trim_start();
        loop {
            let done = match rest.chars().next()? {
                '(' => {
                    open.push(Vec::new());
                    rest = rest[1..].trim_start();
                    continue;
                }
                ')' => {
                    rest = rest[1..].trim_start();
                    Sexpr::List(open.pop()?)
                }
                '|' => {
                    let end = rest[1..].find('|')? + 2;
                    let atom = rest[..end].to_owned();
                    rest = rest[end..].trim_start();
                    Sexpr::Atom(atom)
                }
                _ => {
                    let end = rest.find(|c: char| c.is_whitespace() || c == '(' || c == ')').unwrap_or(rest.len());
                    let atom = rest[..end].to_owned();
                    rest = rest[end..].trim_start();
                    Sexpr::Atom(atom)
                }
            };
            match open.last_mut() {
                Some(list) => list.push(done),
                None => return Some(done),
            }
        }
    }

    /// The values of an answer to `get-value`, in the order of the terms.
    pub(crate) fn values(&self) -> Option<Vec<Sexpr>> {
        let Sexpr::List(pairs) = self else { return None };
        let value = |pair: &Sexpr| match pair {
            Sexpr::List(pair) if pair.len() == 2 => Some(pair[1].clone()),
            _ => None,
        };
        pairs.iter().map(value).collect()
    }

    /// A value as the solver writes it: `5`, `(- 5)`, `true`, `Id.Key!val!0`.
    pub(crate) fn text(&self) -> String {
        match self {
            Sexpr::Atom(atom) => atom.clone(),
            Sexpr::List(parts) => match parts.as_slice() {
                [Sexpr::Atom(minus), number] if minus == "-" => format!("-{}", number.text()),
                parts => format!("({})", parts.iter().map(Sexpr::text).collect::<Vec<_>>().join(" ")),
            },
        }
    }
}

/// Names for the ids of a counterexample: `Key!val!7` is `key1` if it is the first key that is shown.
#[derive(Default, Debug)]
pub(crate) struct Ids {
    names: BTreeMap<String, String>,
    counts: BTreeMap<String, usize>,
}

impl Ids {
    /// How a value is shown.
    pub(crate) fn name(&mut self, value: &str) -> String {
        let Some((sort, _)) = value.strip_prefix("Id.").and_then(|value| value.split_once("!val!")) else {
            return value.to_owned();
        };
        if let Some(name) = self.names.get(value) {
            return name.clone();
        }
        let count = self.counts.entry(sort.to_owned()).or_default();
        *count += 1;
        let mut letters = sort.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_lowercase).collect();
        let name = format!("{first}{}{count}", letters.as_str());
        self.names.insert(value.to_owned(), name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let answer = Sexpr::parse("((|s 0| (- 5))\n (x Id.Key!val!0) ((f 1) true))").expect("an answer");
        let values: Vec<_> = answer.values().expect("pairs").iter().map(Sexpr::text).collect();
        assert_eq!(values, ["-5", "Id.Key!val!0", "true"]);
        for text in ["", "(", "(a", ")", "|a"] {
            assert_eq!(Sexpr::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ids_are_named_in_the_order_in_which_they_are_shown() {
        let mut ids = Ids::default();
        let names = ["Id.Key!val!3", "Id.Key!val!0", "Id.Item!val!1", "Id.Key!val!3", "7"].map(|id| ids.name(id));
        assert_eq!(names, ["key1", "key2", "item1", "key1", "7"]);
    }
}

//! Summarisation (§3.3): the summary of two calls is a call c″ iff for all states σ, c ∘ c′(σ) = c″(σ).
//!
//! A solver proves that a given call is the summary of two; it does not find one. So the specification may name it
//! (`summary deposit(a), deposit(b) = deposit(a + b)`: first a, then b). For methods that could be reducible and
//! without a summary of their own, these are tried, until one is proved:
//!
//! - the same method, with each argument the sum, the maximum, the minimum, the union, the disjunction or the
//!   conjunction of both, by its type; or that of the second call, or of the first;
//! - the later of both calls, for each argument that is a number (as a timestamp is);
//! - for two different methods, one of both calls.
//!
//! The state is one in which the first call is permissible, and the second after it ([`States::Permissible`]); then the
//! summary has to be permissible, too. So a process that applies it does what it would have done with both.

use std::slice::from_ref;

use super::core::{Binary, Core, Parameter, Summarised, Summary};
use super::counterexample::Shown;
use super::question::Question;
use super::relations::{Relations, States, Verdict};
use super::solver::SolverError;
use super::types::Type;
use super::value::{Term, and, not, or};

/// At most so many calls with other arguments are tried for one pair of methods.
const TRIED_MAX: usize = 36;
/// All sets of so many methods are looked at; with more, only single methods.
const SUBSETS_MAX: usize = 12;

/// A summary, and whether it was proved.
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, analyse};
///
/// let text = "type Max { state { max: int = 0 } update raise(to: int) { max := max(max, to) } }";
/// let analysis = analyse(&Specification::parse("max.wrdt", text)?, &Options::default())?;
/// assert_eq!(analysis.summaries[0].text, "raise(a), raise(b) = raise(max(a, b))");
/// assert!(!analysis.summaries[0].is_declared && analysis.summaries[0].verdict.holds());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SummaryVerdict {
    /// The two methods.
    pub methods: [usize; 2],
    /// The methods of the calls that it may be.
    pub results: Vec<usize>,
    /// As the specification has it, or would.
    pub text: String,
    /// Whether it is the specification's.
    pub is_declared: bool,
    /// Whether it is one.
    pub verdict: Verdict,
}

impl Relations<'_> {
    /// Whether a call is the summary of two.
    fn summarises(&mut self, summary: &Summary) -> Result<Verdict, SolverError> {
        let mut question = Question::new(self.spec);
        let before = question.state("s0");
        let (one, two) = (question.call(summary.methods[0]), question.call(summary.methods[1]));
        question.assert_unique(&one, &two);
        let after_one = question.after(&before, &one, "s1");
        let both = question.after(&after_one, &two, "s12");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0, 1]), &both);
        if self.states == States::Permissible {
            question.assert(&question.integrity(&before));
            question.assert(&question.permissible(&before, &one, &after_one));
            question.assert(&question.permissible(&after_one, &two, &both));
        }
        let inside = question.arguments([(&summary.arguments[0], &one), (&summary.arguments[1], &two)]);
        let mut wrong = Vec::new();
        let mut branches = vec![(&summary.result, Vec::<Term>::new())];
        let mut count = 0;
        while let Some((result, conditions)) = branches.pop() {
            match result {
                Summarised::If(condition, then, otherwise) => {
                    let condition = inside.term(condition);
                    branches.push((otherwise, [&conditions[..], &[not(&condition)]].concat()));
                    branches.push((then, [&conditions[..], &[condition]].concat()));
                }
                Summarised::Call(method, arguments) => {
                    count += 1;
                    let arguments = arguments.iter().map(|argument| inside.value(argument)).collect();
                    let call = question.call_with(*method, arguments);
                    let after = question.after(&before, &call, &format!("s3.{count}"));
                    let mut parts = vec![question.different(&both, &after)];
                    let not_made = not(&question.is_made(&call));
                    parts.push(question.cause(&not_made, "the summary's arguments are refused".to_owned()));
                    if self.states == States::Permissible {
                        let refused = not(&question.requirements(&before, &call));
                        parts.push(
                            question.cause(&refused, "the summary is refused where both calls are not".to_owned()),
                        );
                    }
                    wrong.push(and(&[&conditions[..], &[or(&parts)]].concat()));
                }
            }
        }
        question.assert(&or(&wrong));
        question.ask(&mut self.solver)
    }

    /// The specification's own summaries.
    pub(crate) fn declared_summaries(&mut self) -> Result<Vec<SummaryVerdict>, SolverError> {
        let spec = self.spec;
        spec.summaries.iter().map(|summary| self.judge(summary, true)).collect()
    }

    fn judge(&mut self, summary: &Summary, is_declared: bool) -> Result<SummaryVerdict, SolverError> {
        let verdict = self.summarises(summary)?;
        let (results, text) = (summary.result.methods(), summary.text.clone());
        Ok(SummaryVerdict { methods: summary.methods, results, text, is_declared, verdict })
    }

    /// A summary of calls of two methods that is proved among those that are tried, if there is one.
    pub(crate) fn found_summary(&mut self, first: usize, second: usize) -> Result<Option<SummaryVerdict>, SolverError> {
        for summary in self.candidates(first, second) {
            let tried = self.judge(&summary, false)?;
            if tried.verdict.holds() {
                return Ok(Some(tried));
            }
        }
        Ok(None)
    }

    fn candidates(&self, first: usize, second: usize) -> Vec<Summary> {
        let (ours, others) = (&self.spec.updates[first], &self.spec.updates[second]);
        let base = self.spec.locals;
        let arguments = [
            (base..base + ours.parameters.len()).collect::<Vec<_>>(),
            (base + ours.parameters.len()..base + ours.parameters.len() + others.parameters.len()).collect::<Vec<_>>(),
        ];
        let names = |parameters: &[Parameter], mark: &str| -> Vec<String> {
            let name = |parameter: &Parameter| {
                if parameters.len() == 1 { mark.to_owned() } else { format!("{}_{mark}", parameter.name) }
            };
            parameters.iter().map(name).collect()
        };
        let (a, b) = (names(&ours.parameters, "a"), names(&others.parameters, "b"));
        let left = format!("{}({}), {}({})", ours.name, a.join(", "), others.name, b.join(", "));
        let whole = |call: usize| {
            let method = [first, second][call];
            Summarised::Call(method, arguments[call].iter().map(|local| Core::Local(*local)).collect())
        };
        let written = [format!("{}({})", ours.name, a.join(", ")), format!("{}({})", others.name, b.join(", "))];
        let make = |result: Summarised, text: &str| Summary {
            methods: [first, second],
            arguments: arguments.clone(),
            result,
            text: format!("{left} = {text}"),
        };
        let mut all = Vec::new();
        if first == second {
            // For each parameter the ways to combine two arguments, the likeliest first.
            let mut lists: Vec<(Vec<Core>, Vec<String>)> = vec![(vec![], vec![])];
            for (n, parameter) in ours.parameters.iter().enumerate() {
                let ways = combined(&parameter.ty, [arguments[0][n], arguments[1][n]], [&a[n], &b[n]]);
                let longer = |(cores, texts): &(Vec<Core>, Vec<String>)| {
                    let with = |(core, text): &(Core, String)| {
                        ([&cores[..], from_ref(core)].concat(), [&texts[..], from_ref(text)].concat())
                    };
                    ways.iter().map(with).collect::<Vec<_>>()
                };
                lists = lists.iter().flat_map(longer).take(TRIED_MAX).collect();
            }
            for (cores, texts) in lists {
                all.push(make(Summarised::Call(first, cores), &format!("{}({})", ours.name, texts.join(", "))));
            }
            let is_number = |n: &usize| ours.parameters[*n].ty == Type::Int && ours.parameters.len() > 1;
            for n in (0..ours.parameters.len()).filter(is_number) {
                let later = Core::binary(Binary::Less, Core::Local(arguments[0][n]), Core::Local(arguments[1][n]));
                let text = format!("if {} < {} then {} else {}", a[n], b[n], written[1], written[0]);
                all.push(make(Summarised::If(later, Box::new(whole(1)), Box::new(whole(0))), &text));
            }
        }
        all.push(make(whole(1), &written[1]));
        all.push(make(whole(0), &written[0]));
        all
    }
}

/// The ways to make one argument of two, with their texts.
fn combined(ty: &Type, locals: [usize; 2], names: [&str; 2]) -> Vec<(Core, String)> {
    let [a, b] = locals.map(Core::Local);
    let [x, y] = names;
    let of = |binary| Core::binary(binary, a.clone(), b.clone());
    let mut ways = match ty {
        Type::Int => vec![
            (of(Binary::Add), format!("{x} + {y}")),
            (of(Binary::Max), format!("max({x}, {y})")),
            (of(Binary::Min), format!("min({x}, {y})")),
        ],
        Type::Bool => vec![(of(Binary::Or), format!("{x} or {y}")), (of(Binary::And), format!("{x} and {y}"))],
        Type::Set(_) => vec![(of(Binary::Union), format!("{x} union {y}"))],
        _ => vec![],
    };
    ways.push((b.clone(), y.to_owned()));
    ways.push((a.clone(), x.to_owned()));
    ways
}

/// The summarisation groups (§3.3): disjoint sets of these methods, the largest first, each closed under the summaries
/// that were proved.
pub(crate) fn groups(methods: &[usize], summaries: &[SummaryVerdict]) -> Vec<Vec<usize>> {
    let is_closed = |group: &[usize]| {
        let is_summarised = |methods: [usize; 2]| {
            summaries.iter().any(|summary| {
                summary.methods == methods
                    && summary.verdict.holds()
                    && summary.results.iter().all(|result| group.contains(result))
            })
        };
        group.iter().all(|first| group.iter().all(|second| is_summarised([*first, *second])))
    };
    let mut closed: Vec<Vec<usize>> = if methods.len() <= SUBSETS_MAX {
        let subset = |bits: usize| {
            let of = methods.iter().enumerate().filter(move |(n, _)| bits >> n & 1 == 1);
            of.map(|(_, method)| *method).collect::<Vec<_>>()
        };
        (1..1 << methods.len()).map(subset).filter(|group| is_closed(group)).collect()
    } else {
        methods.iter().map(|method| vec![*method]).filter(|group| is_closed(group)).collect()
    };
    closed.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for group in closed {
        if !groups.iter().flatten().any(|method| group.contains(method)) {
            groups.push(group);
        }
    }
    groups.sort();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proved(first: usize, second: usize, results: &[usize]) -> SummaryVerdict {
        let (methods, results) = ([first, second], results.to_vec());
        SummaryVerdict { methods, results, text: String::new(), is_declared: true, verdict: Verdict::Holds }
    }

    #[test]
    fn a_group_is_closed() {
        // 0 alone is not: two calls of it are one of 1.
        let both = [proved(0, 0, &[1]), proved(0, 1, &[1]), proved(1, 0, &[1]), proved(1, 1, &[1])];
        assert_eq!(groups(&[0, 1], &both), [vec![0, 1]]);
        assert_eq!(groups(&[0, 1], &both[..3]), Vec::<Vec<usize>>::new());
        assert_eq!(groups(&[0, 1], &both[1..]), [vec![1]]);
        let apart = [proved(0, 0, &[0]), proved(1, 1, &[1]), proved(2, 2, &[0])];
        assert_eq!(groups(&[0, 1, 2], &apart), [vec![0], vec![1]]);
    }
}

//! The report of an analysis, as text.

use std::fmt::{self, Write};

use super::counterexample::Counterexample;
use super::graph::{Analysis, Category, Pair};
use super::relations::{States, Verdict};

/// The whole report: mistakes of the specification first, then categories, groups and dependencies, then a
/// counterexample for each relation that does not hold, and what it cost.
impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mistakes(self, f)?;
        categories(self, f)?;
        relations(self, f)?;
        let Analysis { questions, skipped, undecided, took, .. } = self;
        write!(f, "{questions} questions to z3, {skipped} answered without it, in {:.2} s", took.as_secs_f64())?;
        if *undecided > 0 {
            write!(
                f,
                "; {undecided} NOT DECIDED, which count as not proved: raise --timeout, or write simpler conditions"
            )?;
        }
        if self.states == States::All {
            f.write_str("\nThe relations are about all states, as the paper's definitions say literally.")?;
        }
        writeln!(f)
    }
}

fn mistakes(analysis: &Analysis, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut say = |verdict: &Verdict, what: String, help: &str| match verdict {
        Verdict::Holds => Ok(()),
        Verdict::Fails(counterexample) => writeln!(f, "WRONG: {what}: {help}\n{}\n", indented(counterexample)),
        Verdict::Undecided(why) => writeln!(f, "NOT DECIDED whether {what} ({why}): {help}\n"),
    };
    let help = "change the initial values or the invariant";
    say(&analysis.initial, "the initial state does not satisfy the invariant".to_owned(), help)?;
    for method in &analysis.methods {
        let what = format!("{} breaks the invariant where its requirements hold", method.name);
        say(&method.is_guarded, what, "add a `requires`; with `requires invariant else \"…\"` the runtime checks it")?;
    }
    for summary in analysis.summaries.iter().filter(|summary| summary.is_declared) {
        let what = format!("`summary {}` is none", summary.text);
        say(&summary.verdict, what, "correct it, or leave it out")?;
    }
    Ok(())
}

fn categories(analysis: &Analysis, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}\n", analysis.name)?;
    let width = analysis.methods.iter().map(|method| method.name.len()).max().unwrap_or(0);
    for (number, method) in analysis.methods.iter().enumerate() {
        let mut more = Vec::new();
        let conflicts = |edge: &&(usize, usize)| edge.0 == number || edge.1 == number;
        let others = analysis.conflicts.iter().filter(conflicts).map(|(a, b)| if *a == number { *b } else { *a });
        let others: Vec<&str> = others.map(|other| &*analysis.methods[other].name).collect();
        if !others.is_empty() {
            more.push(format!("conflicts with {}", others.join(", ")));
        }
        let dependencies = analysis.dependencies_of(&method.name);
        if !dependencies.is_empty() {
            more.push(format!("depends on {}", dependencies.join(", ")));
        }
        if method.category == Category::ConflictFree && dependencies.is_empty() {
            more.push("no summary of two calls is known".to_owned());
        }
        let line = format!("  {:width$}  {:25}  {}", method.name, method.category.to_string(), more.join("; "));
        writeln!(f, "{}", line.trim_end())?;
    }
    writeln!(f)?;
    let groups = |groups: &[Vec<usize>]| match groups {
        [] => "none".to_owned(),
        groups => {
            let braced = |group: &Vec<usize>| format!("{{{}}}", analysis.names(group).join(", "));
            groups.iter().map(braced).collect::<Vec<_>>().join(" ")
        }
    };
    writeln!(f, "synchronisation groups  {}", groups(&analysis.synchronisation_groups))?;
    writeln!(f, "summarisation groups    {}", groups(&analysis.summarisation_groups))?;
    for summary in analysis.summaries.iter().filter(|summary| summary.verdict.holds()) {
        let found = if summary.is_declared { "declared, proved" } else { "found, proved" };
        writeln!(f, "summary                 {} ({found})", summary.text)?;
    }
    writeln!(f)
}

fn relations(analysis: &Analysis, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let name = |method: usize| &*analysis.methods[method].name;
    let mut say = |verdict: &Verdict, what: String, so: String| match verdict {
        Verdict::Holds => Ok(()),
        Verdict::Fails(counterexample) => writeln!(f, "{what}{so}\n{}\n", indented(counterexample)),
        Verdict::Undecided(why) => writeln!(f, "NOT DECIDED whether {what} ({why}); it counts as that{so}\n"),
    };
    for method in &analysis.methods {
        say(&method.is_invariant_sufficient, format!("{} is not invariant-sufficient", method.name), String::new())?;
    }
    let mut pairs = |pairs: &[Pair], relation: &str, so: &dyn Fn(&Pair) -> String| {
        pairs.iter().try_for_each(|pair| {
            let what = format!("{} does not {relation} with {}", name(pair.first), name(pair.second));
            say(&pair.verdict, what, so(pair))
        })
    };
    pairs(&analysis.state_commutes, "S-commute", &|_| ": they conflict".to_owned())?;
    pairs(&analysis.right_commutes, "P-R-commute", &|_| ": they conflict".to_owned())?;
    pairs(&analysis.left_commutes, "P-L-commute", &|pair| {
        format!(": {} depends on {}", name(pair.first), name(pair.second))
    })
}

fn indented(counterexample: &Counterexample) -> String {
    let mut text = String::new();
    for line in counterexample.to_string().lines() {
        let _ = writeln!(text, "    {line}");
    }
    text.trim_end().to_owned()
}

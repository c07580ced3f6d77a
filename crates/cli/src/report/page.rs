//! The page around the pictures.

use html_escape::encode_quoted_attribute as escape;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::Result;

use super::compare::{self, Ratio};
use super::figures::{self, Figure};
use super::group::{Case, Results};
use super::panel::{self, FIELDS, Measure, Styles};
use super::papers::{Made, PAPERS, Paper};
use super::picture::{self, Picture};
use super::words::{self, digits};
use super::{FARFIELD, tables};
use crate::output::grouped;

const STYLE: &str = include_str!("page.css");
/// More pictures of one sort than these are folded away.
const SHOWN_MAX: usize = 6;

/// The contents of the page.
pub(super) struct Page<'a> {
    results: &'a Results,
    measurements: usize,
    benches: Vec<Bench<'a>>,
    papers: Vec<(&'static Paper, Option<Made<'a>>)>,
}

/// Some pictures of a bench.
type Pick = for<'b, 'a> fn(&'b Bench<'a>) -> &'b [Figure<'a>];

/// The pictures of one bench.
struct Bench<'a> {
    name: &'a str,
    ratios: Vec<Ratio<'a>>,
    beside: Vec<Figure<'a>>,
    throughput: Vec<Figure<'a>>,
    latency: Vec<Figure<'a>>,
    fairness: Vec<Figure<'a>>,
}

impl<'a> Page<'a> {
    /// Draws all pictures.
    pub(super) fn of(results: &'a Results, measurements: usize) -> Result<Page<'a>> {
        let benches = results.benches().into_iter().map(|bench| Bench::of(results, bench)).collect::<Result<_>>()?;
        let paper = |paper: &'static Paper| {
            let styles = Styles::of(results.of(paper.bench));
            Ok((paper, paper.make(results, &styles)?))
        };
        let papers = PAPERS.iter().map(paper).collect::<Result<_>>()?;
        Ok(Page { results, measurements, benches, papers })
    }

    /// All pictures, each with its name.
    pub(super) fn pictures(&self) -> impl Iterator<Item = &Picture> {
        let of_benches = self.benches.iter().flat_map(Bench::figures);
        let of_papers = self.papers.iter().filter_map(|(_, made)| made.as_ref()).flat_map(|made| &made.figures);
        of_benches.chain(of_papers).map(|figure| &figure.picture)
    }

    /// The tables of ratios as Markdown.
    pub(super) fn markdown(&self) -> String {
        let compared = self.benches.iter().filter(|bench| !bench.ratios.is_empty());
        compared.map(|bench| tables::ratios_as_markdown(self.results, bench.name, &bench.ratios)).collect()
    }

    /// The page as a text.
    pub(super) fn html(&self) -> String {
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"/>\n<title>Farfield, measured</title>\n<style>\n{STYLE}{}\
             </style>\n</head>\n<body>\n",
            picture::STYLE
        );
        self.header(&mut out);
        out += "<main>\n";
        self.peers(&mut out);
        let note = "Medians of the repetitions; whiskers reach from the least to the greatest.";
        self.section(&mut out, "throughput", "Throughput", note, |bench| &bench.throughput[..]);
        let note =
            "All samples of all repetitions together, up to the 99.9th percentile. The table below has the slowest.";
        self.section(&mut out, "latency", "Latency", note, |bench| &bench.latency[..]);
        let note = "Operations of the slowest thread or node as a share of the fastest's: 1 is even. Medians of the \
                    repetitions; whiskers reach from the least to the greatest.";
        self.section(&mut out, "fairness", "Fairness", note, |bench| &bench.fairness[..]);
        self.papers(&mut out);
        out += "<section id=\"all\">\n<h2>All measurements</h2>\n";
        for bench in &self.benches {
            out += &tables::cases(self.results, bench.name);
        }
        out + "</section>\n</main>\n</body>\n</html>\n"
    }

    fn header(&self, out: &mut String) {
        let Results { cases, machines, from, to, .. } = self.results;
        let when = if from == to { format!("at {from}") } else { format!("from {from} to {to}") };
        let _ = write!(
            out,
            "<header>\n<h1>Farfield, measured</h1>\n<p>{} measurements of {} cases, {}, of {}.</p>\n<ul \
             class=\"machines\">\n",
            grouped(self.measurements as u64),
            cases.len(),
            escape(&when),
            escape(&versions(cases.iter()))
        );
        for (at, machine) in machines.iter().enumerate() {
            let _ = writeln!(
                out,
                "<li>Machine {}: {}, {} core{}, {} GiB of memory, Linux {}</li>",
                tables::machine(at),
                escape(&machine.cpu),
                machine.cores,
                if machine.cores == 1 { "" } else { "s" },
                digits(machine.memory_bytes as f64 / (1u64 << 30) as f64),
                escape(&machine.kernel)
            );
        }
        *out += "</ul>\n<nav aria-label=\"Sections\"><ul>\n";
        let has = |of: Pick| self.benches.iter().any(|bench| !of(bench).is_empty());
        for (name, title, is_there) in [
            ("peers", "Beside its peers", true),
            ("throughput", "Throughput", has(|bench| &bench.throughput[..])),
            ("latency", "Latency", has(|bench| &bench.latency[..])),
            ("fairness", "Fairness", has(|bench| &bench.fairness[..])),
            ("papers", "The papers' figures", true),
            ("all", "All measurements", true),
        ] {
            if is_there {
                let _ = writeln!(out, "<li><a href=\"#{name}\">{title}</a></li>");
            }
        }
        *out += "</ul></nav>\n</header>\n";
    }

    fn peers(&self, out: &mut String) {
        *out += "<section id=\"peers\">\n<h2>Beside its peers</h2>\n";
        let all = || self.benches.iter().flat_map(|bench| &bench.ratios);
        if all().next().is_none() {
            *out += "<p>No peer did the same work. <code>farfield bench … --peer mpi --json results.jsonl</code> \
                     measures one in turns with Farfield.</p>\n</section>\n";
            return;
        }
        let losses = all().filter(|of| of.is_loss()).count();
        let _ = writeln!(
            out,
            "<p>Farfield's throughput by the peer's, of the medians, for the same bench, case and setup on the same \
             machine. Bars to the right: Farfield is faster. Bars to the left, in another colour: it loses. Whiskers reach \
             from the least to the greatest ratio of two repetitions of one turn. Farfield loses {losses} of {} \
             comparisons.</p>",
            all().count()
        );
        for bench in self.benches.iter().filter(|bench| !bench.ratios.is_empty()) {
            let _ = writeln!(out, "<h3>{}</h3>", escape(&words::bench(bench.name)));
            self.losses(out, bench);
            *out += "<div class=\"pair\">\n";
            self.grid(out, bench.beside.iter());
            *out += &tables::ratios(self.results, bench.name, &bench.ratios);
            *out += "</div>\n";
        }
        *out += "</section>\n";
    }

    /// The losses of a bench, in words.
    fn losses(&self, out: &mut String, bench: &Bench) {
        let losses: Vec<_> = bench.ratios.iter().filter(|of| of.is_loss()).collect();
        if losses.is_empty() {
            let _ = writeln!(out, "<p>Farfield loses none of {} comparisons.</p>", bench.ratios.len());
            return;
        }
        let differing = self.results.differing(bench.ratios.iter().map(|of| of.own));
        let _ = writeln!(out, "<p>Farfield loses {} of {} comparisons:</p>\n<ul>", losses.len(), bench.ratios.len());
        for of in losses {
            let doubt = if of.max >= 1.0 { "; it wins in some repetitions" } else { "" };
            let _ = writeln!(
                out,
                "<li>{}: <b class=\"loss\">{} ×</b> ({} to {}{doubt})</li>",
                escape(&of.label(&differing)),
                digits(of.ratio),
                digits(of.min),
                digits(of.max)
            );
        }
        *out += "</ul>\n";
    }

    fn section(&self, out: &mut String, name: &str, title: &str, note: &str, of: Pick) {
        if self.benches.iter().all(|bench| of(bench).is_empty()) {
            return;
        }
        let _ = writeln!(out, "<section id=\"{name}\">\n<h2>{title}</h2>\n<p>{note}</p>");
        self.grid(out, self.benches.iter().flat_map(of));
        *out += "</section>\n";
    }

    fn papers(&self, out: &mut String) {
        *out += "<section id=\"papers\">\n<h2>The papers' figures</h2>\n<p>The figures of the LOCO and ALock papers, from \
                 what was measured here.</p>\n";
        for (paper, made) in &self.papers {
            let _ =
                writeln!(out, "<h3 id=\"{}\">{}</h3>\n<p>{}</p>", paper.name, escape(paper.title), escape(paper.shows));
            match made {
                Some(made) => {
                    let _ = writeln!(out, "<p class=\"setting\">{}</p>", escape(&made.here));
                    self.grid(out, made.figures.iter());
                }
                None => {
                    let command = paper.command();
                    let command = escape(&command);
                    let _ = writeln!(
                        out,
                        "<p class=\"missing\">Not measured. This command does it: <code>{command}</code></p>"
                    );
                }
            }
        }
        *out += "</section>\n";
    }

    /// Pictures beside each other. Of each bench only some are shown at once.
    fn grid<'b>(&self, out: &mut String, figures: impl Iterator<Item = &'b Figure<'a>>)
    where
        'a: 'b,
    {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let (shown, more): (Vec<&Figure>, Vec<&Figure>) = figures.partition(|figure| {
            let count = counts.entry(figure.bench()).or_default();
            *count += 1;
            *count <= SHOWN_MAX
        });
        *out += "<div class=\"grid\">\n";
        shown.iter().for_each(|figure| self.figure(out, figure));
        *out += "</div>\n";
        if !more.is_empty() {
            let count = more.len();
            let _ = writeln!(
                out,
                "<details class=\"more\"><summary>{count} more picture{}</summary>\n<div class=\"grid\">",
                if count == 1 { "" } else { "s" }
            );
            more.iter().for_each(|figure| self.figure(out, figure));
            *out += "</div>\n</details>\n";
        }
    }

    fn figure(&self, out: &mut String, figure: &Figure) {
        let cases = || figure.cases.iter().copied();
        let machines: BTreeSet<_> = cases().map(|case| case.key.machine).collect();
        let machines: Vec<_> = machines.into_iter().map(tables::machine).collect();
        // Fields that are the same in the whole picture stand nowhere else.
        let differing = self.results.differing(cases());
        let first = cases().next().map(|case| &case.key.setup);
        let same = first.map(|setup| words::setup(setup, |name| !differing.contains(name))).unwrap_or_default();
        let _ = write!(
            out,
            "<figure id=\"{}\">\n<figcaption>{}</figcaption>\n{}<details class=\"how\"><summary>How it was \
             measured</summary>\n<p>Machine {}; {}{}</p>\n",
            figure.picture.name,
            escape(&figure.picture.title),
            figure.picture.in_page(),
            machines.join(", "),
            escape(&versions(cases())),
            if same.is_empty() { ".".to_owned() } else { format!("; {}.", escape(&same)) }
        );
        let commands: BTreeSet<_> = cases().flat_map(|case| &case.commands).collect();
        for command in commands {
            let _ = writeln!(out, "<p><code>{}</code></p>", escape(command));
        }
        *out += "</details>\n</figure>\n";
    }
}

/// The systems and their versions: `Farfield 0.1.0, MPI 4.1.4`.
fn versions<'a>(cases: impl Iterator<Item = &'a Case>) -> String {
    let mut versions: BTreeMap<(bool, &str), BTreeSet<&str>> = BTreeMap::new();
    for Case { key, .. } in cases {
        versions.entry((key.system != FARFIELD, &key.system)).or_default().insert(&key.version);
    }
    let said = versions.into_iter().map(|((_, system), versions)| {
        format!("{} {}", words::system(system), versions.into_iter().collect::<Vec<_>>().join(" and "))
    });
    said.collect::<Vec<_>>().join(", ")
}

impl<'a> Bench<'a> {
    fn of(results: &'a Results, name: &'a str) -> Result<Bench<'a>> {
        let cases: Vec<&Case> = results.of(name).collect();
        let styles = Styles::of(results.of(name));
        let title = words::bench(name);
        let mut throughput = Vec::new();
        for over in FIELDS {
            for panel in panel::panels(results, &cases, &styles, over, Measure::Throughput, 2) {
                throughput.push(figures::lines(&panel, Measure::Throughput)?);
            }
        }
        if throughput.is_empty() {
            let axis = format!("{} per second", words::operation(name));
            throughput = figures::bars(results, &title, &axis, &cases, |case| Some(case.throughput))?;
        }
        let ratios = compare::ratios(results, name);
        let mut bench = Bench {
            name,
            beside: figures::ratios(results, &title, &ratios)?,
            ratios,
            throughput,
            latency: figures::distributions(results, &cases, &styles)?,
            fairness: figures::bars(results, &title, "fairness", &cases, |case| case.fairness)?,
        };
        bench.give_names();
        Ok(bench)
    }

    /// A name for each picture, which stays the same when others come later.
    fn give_names(&mut self) {
        let plain =
            |name: &str| name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
        let bench = plain(self.name);
        for (sort, figures) in [
            ("ratios", &mut self.beside),
            ("throughput", &mut self.throughput),
            ("latency", &mut self.latency),
            ("fairness", &mut self.fairness),
        ] {
            for (at, figure) in figures.iter_mut().enumerate() {
                figure.picture.name = format!("{sort}-{bench}-{}", at + 1);
            }
        }
    }

    fn figures(&self) -> impl Iterator<Item = &Figure<'a>> {
        [&self.beside, &self.throughput, &self.latency, &self.fairness].into_iter().flatten()
    }
}

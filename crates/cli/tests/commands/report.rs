//! `farfield report`, end to end, over synthetic measurements, which `src/report/samples.rs` makes.

use std::collections::HashSet;
use std::fs;
use std::process::{Command, Output};

use roxmltree::{Document, Node, ParsingOptions};

const MEASUREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/synthetic-measurements.jsonl");

fn report(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.arg("report").args(arguments).output().expect("the binary runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All text in a part of a page.
fn text(node: Node) -> String {
    node.descendants().filter_map(|part| part.text().filter(|_| part.is_text())).collect()
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let (page, pictures) = (directory.path().join("report.html"), directory.path().join("pictures"));
    let (page_name, directory_name) = (page.to_str().expect("plain"), pictures.to_str().expect("plain"));
    let tables = directory.path().join("tables.md");
    let tables_name = tables.to_str().expect("plain");
    let output = report(&[MEASUREMENTS, "-o", page_name, "--svg", directory_name, "--markdown", tables_name]);
    assert!(output.status.success(), "{}", said(&output));
    let tables = fs::read_to_string(&tables).expect("the tables were written");
    assert!(tables.contains("\n|---|---:|---:|") && tables.contains("\n| transfer, 2 nodes / MPI | "), "{tables}");
    let page = fs::read_to_string(&page).expect("the page was written");
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("url("), "it needs the network");
    assert!(!page.contains("NaN") && !page.contains("inf "), "a number is none");

    // It is HTML and XML at once, so that a parser of XML finds a tag that is not closed.
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let parsed = Document::parse_with_options(&page, options).expect("well-formed");
    let root = parsed.root_element();
    let with_id = |id: &str| root.descendants().find(|part| part.attribute("id") == Some(id));
    let ids: Vec<_> = root.descendants().filter_map(|part| part.attribute("id")).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    for link in root.descendants().filter_map(|part| part.attribute("href")) {
        assert!(with_id(link.trim_start_matches('#')).is_some(), "{link} leads nowhere");
    }

    // Every picture has a name, a description and its commands.
    let figures: Vec<_> = root.descendants().filter(|part| part.has_tag_name("figure")).collect();
    assert!(figures.len() > 30, "{}", figures.len());
    for figure in &figures {
        let svg = figure.descendants().find(|part| part.has_tag_name("svg")).expect("a picture");
        assert!(svg.attribute("aria-label").is_some_and(|label| label.len() > 10));
        assert!(svg.descendants().any(|part| part.has_tag_name("title")));
        let how = text(*figure);
        assert!(how.contains("Machine A") && how.contains("farfield bench"), "{how}");
    }
    for id in ["peers", "throughput", "latency", "fairness", "papers", "all"] {
        assert!(with_id(id).is_some(), "{id}");
    }
    for picture in [
        "ratios-fabric-1",
        "ratios-transfers-1",
        "throughput-locks-1",
        "throughput-fabric-1",
        "latency-barrier-1",
        "fairness-locks-1",
        "loco-16-barrier-1",
        "loco-16-broadcast-1",
        "loco-17-1",
        "loco-18-1",
        "loco-19-lock-1",
        "loco-19-transfers-1",
        "alock-5-1",
        "alock-6-1",
    ] {
        assert!(with_id(picture).is_some(), "{picture} is missing: {ids:?}");
        let file = fs::read_to_string(pictures.join(format!("{picture}.svg"))).expect("it is also a file");
        Document::parse(&file).expect("well-formed");
    }
    assert_eq!(fs::read_dir(&pictures).expect("the directory").count(), figures.len());

    // Losses are named; a figure that was not measured is named with its command.
    let peers = text(with_id("peers").expect("the section"));
    assert!(
        peers.contains("Farfield loses 2 of 2 comparisons") && peers.contains("transfer, 2 nodes / MPI"),
        "{peers}"
    );
    let papers = text(with_id("papers").expect("the section"));
    assert!(papers.contains("farfield bench locks --budgets --repetitions 5 --json results.jsonl"), "{papers}");
    assert!(papers.contains("Here: shared memory of one host, without a NIC; 2 cores."), "{papers}");
    // Every case has a row of its own, and every row has all columns.
    let all = with_id("all").expect("the section");
    let mut rows = 0;
    for table in all.descendants().filter(|part| part.has_tag_name("table")) {
        let cells = |row: Node| row.children().filter(|cell| cell.is_element()).count();
        let counts: HashSet<_> = table.descendants().filter(|part| part.has_tag_name("tr")).map(cells).collect();
        assert_eq!(counts.len(), 1, "{counts:?}");
        rows += table.descendants().filter(|part| part.has_tag_name("tr")).count() - 1;
    }
    let measured = fs::read_to_string(MEASUREMENTS).expect("the measurements").lines().count();
    assert_eq!(rows * 3, measured, "three repetitions of each");
}

#[test]
fn files_without_valid_measurements_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("it is written");
        path.to_str().expect("plain").to_owned()
    };
    let good = fs::read_to_string(MEASUREMENTS).expect("the measurements").lines().next().expect("a line").to_owned();
    let page = directory.path().join("page.html");
    let page_name = page.to_str().expect("plain");
    for (path, why) in [
        (file("empty.jsonl", "\n"), "no measurements in "),
        (file("other.jsonl", &format!("{good}\n{{\"bench\":\"kv\"}}\n")), "other.jsonl:2: not a measurement"),
        (file("text.jsonl", "3 nodes\n"), "text.jsonl:1: not a measurement"),
        (directory.path().join("none.jsonl").to_str().expect("plain").to_owned(), "opening "),
    ] {
        let output = report(&[&path, "-o", page_name]);
        assert!(!output.status.success() && said(&output).contains(why), "{path}: {}", said(&output));
    }
    assert!(!page.exists(), "no page was written");
    assert!(!report(&[]).status.success(), "a file is needed");

    // Fields of a later version are no obstacle, and one measurement is enough.
    let more =
        good.replacen('{', "{\"added\":[1,{\"later\":true}],", 1).replacen("\"setup\":{", "\"setup\":{\"new\":7,", 1);
    let output = report(&[&file("more.jsonl", &more), "-o", page_name]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read_to_string(&page).expect("the page").contains("<th scope=\"col\">new</th>"));
}

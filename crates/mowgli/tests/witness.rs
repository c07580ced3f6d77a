use mowgli::litmus::Test;
use mowgli::model::Models;
use mowgli::witness::{Answer, find};
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus");
    let mut files = Vec::new();
    for directory in std::fs::read_dir(suite).expect("the suite") {
        let directory = directory.expect("an entry").path();
        files.extend(
            std::fs::read_dir(directory).expect("a part of the suite").map(|entry| entry.expect("an entry").path()),
        );
    }
    files.retain(|file| file.extension().is_some_and(|kind| kind == "litmus"));
    files.sort();
    files
}
#[test]
fn show() {
    let models = Models::builtin();
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("a test");
        let test = Test::parse(&file.display().to_string(), &text, &models).unwrap();
        let start = std::time::Instant::now();
        match find(&test).unwrap() {
            Answer::Witness(graph) => println!(
                "{} {}: witness {:?}",
                test.name,
                test.quantifier,
                graph.seen.iter().map(|s| format!("{}={}", s.0, s.1)).collect::<Vec<_>>()
            ),
            Answer::Impossible => println!("{} {}: impossible", test.name, test.quantifier),
            Answer::Forbidden(graph, cycle) => {
                print!("{} {}: {}: ", test.name, test.quantifier, cycle.law);
                for e in &cycle.edges {
                    print!("{} -{}-> ", graph.subevents[e.from], e.label)
                }
                println!(
                    "[{}] {:?}",
                    graph.subevents[cycle.at],
                    graph.seen.iter().map(|s| format!("{}={}", s.0, s.1)).collect::<Vec<_>>()
                );
            }
        }
        if start.elapsed().as_millis() > 200 {
            println!("     took {:?}", start.elapsed());
        }
    }
}
#[test]
fn draw_all() {
    let models = Models::builtin();
    let Some(out) = std::env::var_os("SVG_OUT") else { return };
    std::fs::create_dir_all(&out).unwrap();
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("a test");
        let test = Test::parse(&file.display().to_string(), &text, &models).unwrap();
        std::fs::write(
            Path::new(&out).join(format!("{}.svg", test.name)),
            mowgli::draw::svg(&test, &find(&test).unwrap()),
        )
        .unwrap();
    }
}

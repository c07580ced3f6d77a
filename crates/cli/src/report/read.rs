//! The lines of JSON that `farfield bench --json` writes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::Value;

use crate::bench::measurement::{FORMAT, Measurement};

/// The options of a run: each field of a setup as a text. Fields that this version does not know are among them, so
/// that measurements that differ in them are not mixed. A field of a nested object is `outer.inner`. Whether threads
/// were pinned is there, too.
pub(super) type Setup = BTreeMap<String, String>;

/// A measurement, as a report needs it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) measurement: Measurement,
    pub(super) setup: Setup,
    pub(super) samples: Option<Histogram<u64>>,
    /// Figures that only some benches have.
    pub(super) figures: BTreeMap<String, f64>,
}

/// The measurements of all these files.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for path in paths {
        let file = std::fs::File::open(path)
            .with_context(|| format!("opening {}: `farfield bench … --json {0}` writes such a file", path.display()))?;
        lines(path, BufReader::new(file), &mut rows)?;
    }
    if rows.is_empty() {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!("no measurements in {}: measure with `farfield bench … --json FILE` first", names.join(", "));
    }
    Ok(rows)
}

fn lines(path: &Path, text: impl BufRead, rows: &mut Vec<Row>) -> Result<()> {
    for (at, line) in text.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), at + 1);
        let line = line.with_context(place)?;
        if !line.trim().is_empty() {
            let row = row(&line).with_context(|| {
                format!("{}: not a measurement: delete the line, or measure again with this version", place())
            })?;
            rows.push(row);
        }
    }
    Ok(())
}

/// One line.
pub(super) fn row(line: &str) -> Result<Row> {
    let value: Value = serde_json::from_str(line)?;
    if let Some(format) = value.get("format").and_then(Value::as_u64) {
        ensure!(format == u64::from(FORMAT), "it is of format {format}, and this version reads format {FORMAT}");
    }
    let mut setup = Setup::new();
    flatten("", value.get("setup").unwrap_or(&Value::Null), &mut setup);
    if let Some(pinned) = value.get("pinned").and_then(Value::as_bool) {
        setup.insert("pinned".into(), pinned.to_string());
    }
    let figures = value.get("figures").and_then(Value::as_object).into_iter().flatten();
    let figures = figures.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
    let measurement: Measurement = serde_json::from_value(value)?;
    let throughput = measurement.throughput_ops_per_s;
    ensure!(throughput.is_finite() && throughput >= 0.0, "throughput_ops_per_s is {throughput}");
    let samples = measurement.latency_histogram.as_ref().map(|of| of.histogram().clone());
    Ok(Row { measurement, setup, samples, figures })
}

fn flatten(prefix: &str, value: &Value, setup: &mut Setup) {
    let text = match value {
        Value::Null => return,
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, value, setup);
            }
            return;
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    setup.insert(prefix.to_owned(), text);
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn fields_that_this_version_does_not_know_are_kept_apart() {
        let mut value = serde_json::to_value(samples::measurement("locks", "alock", "farfield", 1e6)).expect("JSON");
        value["colour"] = "green".into();
        value["pinned"] = true.into();
        value["figures"] = serde_json::json!({ "loopback_per_op": 1.5 });
        value["setup"]["budgets"] = serde_json::json!({ "remote": 5, "local": null });
        let row = row(&value.to_string()).expect("a measurement");
        assert_eq!(row.setup["budgets.remote"], "5");
        assert_eq!(row.setup["nodes"], "2");
        assert_eq!(row.setup["pinned"], "true");
        assert_eq!(row.figures, BTreeMap::from([("loopback_per_op".to_owned(), 1.5)]));
        assert!(!row.setup.contains_key("budgets.local"));
        assert!(!row.samples.expect("samples").is_empty());
    }

    #[test]
    fn an_invalid_measurement_is_refused_by_file_and_line() {
        let good = serde_json::to_string(&samples::measurement("kv", "c", "farfield", 1e6)).expect("JSON");
        for (bad, why) in [
            ("{}".to_owned(), "missing field"),
            ("nonsense".to_owned(), "expected"),
            (good.replace("\"format\":1", "\"format\":2"), "format 2"),
            (good.replace("\"throughput_ops_per_s\":1000000.0", "\"throughput_ops_per_s\":-1.0"), "-1"),
        ] {
            let text = format!("{good}\n\n{bad}\n");
            let error = lines(Path::new("r.jsonl"), text.as_bytes(), &mut Vec::new()).expect_err(&bad);
            let said = format!("{error:#}");
            assert!(said.starts_with("r.jsonl:3: not a measurement") && said.contains(why), "{said}");
        }
    }

    #[test]
    fn no_measurements_at_all_are_an_error() {
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let error = files(&[empty.path().to_owned()]).expect_err("nothing to report");
        assert!(error.to_string().contains("no measurements"), "{error}");
    }
}

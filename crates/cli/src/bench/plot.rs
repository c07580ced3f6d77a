//! A picture of lines: something against a number of threads or nodes, or over time.

use html_escape::encode_quoted_attribute as escape;
use std::fmt::Write;

/// A line through points.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// The width of most letters.
const LETTER: f64 = 6.5;
/// The height of a line of text.
const LINE: f64 = 18.0;
/// Distinguishable with limited colour vision, and on white and black.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The steps from one x to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// By the logarithm, each with its number.
    Doubling,
    /// Even from zero on, with four numbers and no points.
    Even,
    /// Even from zero on, each with its number.
    Each,
}

/// Draws lines, y from zero on.
pub(super) fn svg(title: &str, below: &str, steps: Steps, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points).copied();
    let last = all().map(|(x, _)| x).fold(1.0, f64::max);
    let top = round_up(all().map(|(_, y)| y).fold(0.0, f64::max));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x_of = |x: f64| {
        let part = match steps {
            Steps::Even | Steps::Each => x / last,
            Steps::Doubling if last > 1.0 => x.log2() / last.log2(),
            Steps::Doubling => 0.5,
        };
        LEFT + (right - LEFT) * part
    };
    let y_of = |y: f64| bottom - (bottom - TOP) * y / top;
    let longest = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let width = WIDTH.max(right + 40.0 + LETTER * longest as f64);
    let height = HEIGHT.max(TOP + LINE * lines.len() as f64);
    let mut picture = String::new();
    let mut add = |text: String| picture.push_str(&(text + "\n"));
    add(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>{0}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text \
         x=\"{LEFT}\" y=\"22\" font-size=\"14\">{0}</text>",
        escape(title)
    ));
    for at in 0..=4 {
        let value = top * f64::from(at) / 4.0;
        let y = y_of(value);
        add(format!(
            "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ccc\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            short(value)
        ));
    }
    let mut numbered: Vec<f64> = match steps {
        Steps::Doubling | Steps::Each => all().map(|(x, _)| x).collect(),
        Steps::Even => (0..=4).map(|part| (last * f64::from(part) * 25.0).round() / 100.0).collect(),
    };
    numbered.sort_by(f64::total_cmp);
    numbered.dedup();
    for x in numbered {
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>", x_of(x), bottom + 18.0));
    }
    let middle = (LEFT + right) / 2.0;
    add(format!("<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", bottom + 38.0, escape(below)));
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut path = String::new();
        for (number, (x, y)) in line.points.iter().enumerate() {
            let step = if number == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x_of(*x), y_of(*y));
            if steps == Steps::Even {
                continue;
            }
            add(format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", x_of(*x), y_of(*y)));
        }
        add(format!("<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"));
        let y = TOP + LINE * at as f64;
        add(format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" \
             y=\"{y:.1}\">{}</text>",
            right + 12.0,
            y - 6.0,
            right + 30.0,
            escape(&line.name)
        ));
    }
    add("</svg>".into());
    picture
}

/// The next number with quarters that are short to write.
fn round_up(number: f64) -> f64 {
    if number <= 0.0 {
        return 1.0;
    }
    let unit = 10f64.powf(number.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().map(|of| of * unit).find(|round| *round >= number).unwrap_or(number)
}

/// A number in the unit that suits it.
fn short(number: f64) -> String {
    match number {
        1e9.. => format!("{} G", number / 1e9),
        1e6.. => format!("{} M", number / 1e6),
        1e3.. => format!("{} k", number / 1e3),
        _ => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_and_every_point_is_drawn() {
        let line = |name: &str, factor: f64| Line {
            name: name.into(),
            points: [1.0, 2.0, 4.0].map(|x| (x, x * factor)).into(),
        };
        let picture = svg("a < b", "threads", Steps::Doubling, &[line("spin", 1e6), line("alock", 2e6)]);
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<circle").count(), 6);
        assert!(picture.contains(">spin<") && picture.contains(">alock<") && picture.contains("a &lt; b"));
        assert!(picture.contains(">8 M<") && picture.contains(">0<"));
    }

    #[test]
    fn time_has_few_numbers_and_no_points() {
        let points = (0..200).map(|at| (f64::from(at) / 100.0, 1e6)).collect();
        let picture = svg("t", "seconds", Steps::Even, &[Line { name: "all".into(), points }]);
        assert_eq!(picture.matches("<circle").count(), 0);
        for number in [">0<", ">0.5<", ">1<", ">1.49<", ">1.99<"] {
            assert!(picture.contains(number), "{number}");
        }
    }

    #[test]
    fn every_number_of_nodes_is_named_and_long_names_have_room() {
        let line = |name: &str| Line { name: name.into(), points: [2.0, 3.0, 7.0].map(|x| (x, x)).into() };
        let picture = svg("t", "nodes", Steps::Each, &[line("short"), line("courseware msg-batch updates, 25 %")]);
        assert!([">2<", ">3<", ">7<"].iter().all(|number| picture.contains(number)), "{picture}");
        assert_eq!(picture.matches("<circle").count(), 6);
        assert!(picture.contains("viewBox=\"0 0 771 400\""), "{picture}");
        assert!(svg("t", "nodes", Steps::Each, &[line("short")]).contains("viewBox=\"0 0 640 400\""));
    }

    #[test]
    fn nothing_to_draw_is_drawn_nevertheless() {
        for lines in [&[][..], &[Line { name: "spin".into(), points: vec![(1.0, 0.0)] }]] {
            assert!(!svg("nothing", "threads", Steps::Doubling, lines).contains("NaN"));
        }
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([0.0, 1.0, 3.2e6, 9.9e5].map(round_up), [1.0, 1.0, 4e6, 1e6]);
        assert_eq!([2.5e6, 500.0, 7.5e3].map(short), ["2.5 M", "500", "7.5 k"]);
    }
}

//! The mistakes that can be made in a source file, and the text with all of them in it, each behind its switch.
//!
//! A mistake wraps a piece of the text: `a < b` becomes `(if on(7) { a <= b } else { a < b })`, and a statement
//! `fence(…)?;` becomes `if !on(8) { fence(…)?; }`. Pieces nest as the syntax does, so one text has all of them. The
//! lines stay as they are: nothing that is put in has a line break.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Lit, Stmt};

/// A mistake.
#[derive(Clone, Debug)]
pub(crate) struct Mistake {
    /// The line of the file, from 1.
    pub(crate) line: usize,
    /// The kind of mistake, in a word.
    pub(crate) kind: &'static str,
    /// The text that is wrong with it, on one line.
    pub(crate) was: String,
    /// The text instead.
    pub(crate) becomes: String,
    wraps: Vec<Wrap>,
}

/// Text to put before and after a range of bytes. `{ON}` is the condition that the mistake is on.
#[derive(Clone, Debug)]
struct Wrap {
    range: Range<usize>,
    before: String,
    after: String,
}

/// All mistakes of a file.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn mistakes(text: &str) -> syn::Result<Vec<Mistake>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder { text, found: Vec::new(), is_const: false };
    finder.visit_file(&file);
    finder.found.sort_by_key(|mistake| mistake.wraps[0].range.start);
    Ok(finder.found)
}

struct Finder<'a> {
    text: &'a str,
    found: Vec<Mistake>,
    is_const: bool,
}

impl Finder<'_> {
    fn text(&self, of: &impl Spanned) -> &str {
        &self.text[of.span().byte_range()]
    }

    fn add(&mut self, kind: &'static str, at: &impl Spanned, becomes: &str, wraps: Vec<Wrap>) {
        let was = self.text(at);
        if self.is_const {
            return;
        }
        let (was, becomes) = (on_one_line(was), on_one_line(becomes));
        self.found.push(Mistake { line: at.span().start().line, kind, was, becomes, wraps });
    }

    /// An expression that is another one.
    fn choose(&mut self, kind: &'static str, at: &impl Spanned, instead: &str) {
        let instead_on_one_line = on_one_line(instead);
        let before = format!("(if {{ON}} {{ {instead_on_one_line} }} else {{ ");
        let wrap = Wrap { range: at.span().byte_range(), before, after: " })".into() };
        self.add(kind, at, instead, vec![wrap]);
    }

    /// A condition that is always or never so.
    fn condition(&mut self, condition: &Expr) {
        if matches!(condition, Expr::Let(_)) || has_let(condition) {
            return;
        }
        self.choose("never", condition, "false");
        self.choose("always", condition, "true");
    }

    fn statements(&mut self, block: &Block) {
        for (at, statement) in block.stmts.iter().enumerate() {
            if !is_effect(statement) {
                continue;
            }
            let range = statement.span().byte_range();
            let before = "if !{ON} { ".to_string();
            let skip = Wrap { range: range.clone(), before, after: " }".into() };
            self.add("left out", statement, "", vec![skip.clone()]);
            // The next one is done before it.
            let Some(next) = block.stmts.get(at + 1).filter(|next| is_effect(next)) else { continue };
            let next_text = on_one_line(self.text(next));
            let early = Wrap { range, before: format!("if {{ON}} {{ {next_text} }} "), after: String::new() };
            let skip_next = Wrap { range: next.span().byte_range(), ..skip };
            let becomes = format!("{next_text} {}", self.text(statement));
            self.add("swapped", statement, &becomes, vec![early, skip_next]);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.in_function(&function.attrs, &function.sig, |this| visit::visit_item_fn(this, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.in_function(&function.attrs, &function.sig, |this| visit::visit_impl_item_fn(this, function));
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.statements(block);
        visit::visit_block(self, block);
    }

    fn visit_expr_if(&mut self, branch: &'ast syn::ExprIf) {
        self.condition(&branch.cond);
        if has_let(&branch.cond) {
            // `if let` is never so: chains of conditions begin with any.
            let range = branch.cond.span().byte_range();
            let wrap = Wrap { range, before: "!{ON} && ".into(), after: String::new() };
            self.add("never", &*branch.cond, "false", vec![wrap]);
        }
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, repeat: &'ast syn::ExprWhile) {
        if !has_let(&repeat.cond) {
            self.choose("never", &*repeat.cond, "false");
        }
        visit::visit_expr_while(self, repeat);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let (left, right) = (self.text(&*binary.left).to_string(), self.text(&*binary.right).to_string());
        let other = match binary.op {
            BinOp::Lt(_) => Some("<="),
            BinOp::Le(_) => Some("<"),
            BinOp::Gt(_) => Some(">="),
            BinOp::Ge(_) => Some(">"),
            BinOp::Eq(_) => Some("!="),
            BinOp::Ne(_) => Some("=="),
            _ => None,
        };
        if let Some(other) = other {
            self.choose("compared", binary, &format!("{left} {other} {right}"));
        }
        match binary.op {
            BinOp::And(_) if !has_let(&binary.left) && !has_let(&binary.right) => {
                self.choose("half", binary, &left);
                self.choose("half", binary, &right);
            }
            BinOp::Or(_) => {
                self.choose("half", binary, &left);
                self.choose("half", binary, &right);
            }
            BinOp::Add(_) | BinOp::Sub(_) if is_one(&binary.right) => self.choose("not counted", binary, &left),
            _ => {}
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.args.len() == 1 && ["max", "min"].iter().any(|name| call.method == name) {
            let receiver = self.text(&*call.receiver).to_string();
            self.choose("unbounded", call, &receiver);
        }
        visit::visit_expr_method_call(self, call);
    }
}

impl Finder<'_> {
    fn in_function(&mut self, attrs: &[syn::Attribute], signature: &syn::Signature, visit: impl FnOnce(&mut Self)) {
        if is_test(attrs) {
            return;
        }
        let outer = self.is_const;
        self.is_const |= signature.constness.is_some();
        visit(self);
        self.is_const = outer;
    }
}

/// Whether a statement has an effect and no value: a call or an assignment.
fn is_effect(statement: &Stmt) -> bool {
    let Stmt::Expr(expr, Some(_)) = statement else { return false };
    fn of(expr: &Expr) -> bool {
        match expr {
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
            Expr::Binary(binary) => is_assignment(&binary.op),
            Expr::Await(inner) => of(&inner.base),
            Expr::Try(inner) => of(&inner.expr),
            _ => false,
        }
    }
    of(expr)
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::MulAssign(_)
    )
}

fn is_one(expr: &Expr) -> bool {
    matches!(expr, Expr::Lit(literal) if matches!(&literal.lit, Lit::Int(number) if number.base10_digits() == "1"))
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let is_cfg_test = |attr: &syn::Attribute| attr.parse_args::<syn::Ident>().is_ok_and(|name| name == "test");
        attr.path().is_ident("test") || attr.path().is_ident("cfg") && is_cfg_test(attr)
    })
}

/// The text without line breaks, and without comments to the end of a line.
fn on_one_line(text: &str) -> String {
    let lines = text.lines().map(|line| match line.find("//") {
        // Not in a string: a path has `://`, a comment has a blank before it.
        Some(at) if line[..at].trim().is_empty() || line[..at].ends_with(' ') => line[..at].trim(),
        _ => line.trim(),
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The text with the mistakes in it, each with its number; and the ranges of the result that each has put in.
pub(crate) fn instrument(text: &str, mistakes: &[(u32, &Mistake)]) -> (String, Vec<(u32, Range<usize>)>) {
    // Outer pieces first.
    let mut wraps: Vec<(u32, &Wrap)> =
        mistakes.iter().flat_map(|(number, mistake)| mistake.wraps.iter().map(|wrap| (*number, wrap))).collect();
    wraps.sort_by(|(_, a), (_, b)| (a.range.start, b.range.end).cmp(&(b.range.start, a.range.end)));
    let mut out = String::with_capacity(text.len() * 3);
    let mut put_in = Vec::new();
    let mut open: Vec<(usize, u32, &str)> = Vec::new();
    let mut at = 0;
    let mut put = |out: &mut String, number: u32, what: &str| {
        let start = out.len();
        out.push_str(&what.replace("{ON}", &format!("::farfield_seeded::switch::on({number})")));
        put_in.push((number, start..out.len()));
    };
    for (number, wrap) in wraps {
        while let Some(&(end, of, after)) = open.last().filter(|(end, ..)| *end <= wrap.range.start) {
            out.push_str(&text[at..end]);
            at = end;
            put(&mut out, of, after);
            open.pop();
        }
        out.push_str(&text[at..wrap.range.start]);
        at = wrap.range.start;
        put(&mut out, number, &wrap.before);
        open.push((wrap.range.end, number, &wrap.after));
    }
    while let Some((end, of, after)) = open.pop() {
        out.push_str(&text[at..end]);
        at = end;
        put(&mut out, of, after);
    }
    out.push_str(&text[at..]);
    (out, put_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        fn f(mut a: u64, b: u64) -> u64 {
            g(a); // a comment
            h(b)?;
            if a < b + 1 && b != 3 {
                a += 1;
            }
            if let Some(a) = k() { a } else { a.max(b) }
        }
        const fn c(a: u64) -> bool { a < 3 }
        #[cfg(test)]
        mod tests { fn t() { g(1); } }
    ";

    #[test]
    fn every_kind_is_found_and_tests_and_constants_are_left_alone() {
        let found: Vec<(usize, &str, String)> =
            mistakes(TEXT).unwrap().into_iter().map(|it| (it.line, it.kind, it.becomes)).collect();
        let expected = [
            (3, "left out", ""),
            (3, "swapped", "h(b)?; g(a);"),
            (4, "left out", ""),
            (5, "never", "false"),
            (5, "always", "true"),
            (5, "half", "a < b + 1"),
            (5, "half", "b != 3"),
            (5, "compared", "a <= b + 1"),
            (5, "not counted", "b"),
            (5, "compared", "b == 3"),
            (6, "left out", ""),
            (8, "never", "false"),
            (8, "unbounded", "a"),
        ];
        for mistake in expected {
            assert!(found.contains(&(mistake.0, mistake.1, mistake.2.to_string())), "{mistake:?} in {found:#?}");
        }
        assert_eq!(found.len(), expected.len());
    }

    #[test]
    fn the_text_with_mistakes_has_the_same_lines_and_is_rust() {
        let mistakes = mistakes(TEXT).unwrap();
        let numbered: Vec<(u32, &Mistake)> = (0..).zip(&mistakes).collect();
        let (text, put_in) = instrument(TEXT, &numbered);
        assert_eq!(text.lines().count(), TEXT.lines().count());
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        for (number, range) in put_in {
            assert!(text[range.clone()].is_empty() || text.is_char_boundary(range.start), "{number}");
        }
        let (unchanged, _) = instrument(TEXT, &[]);
        assert_eq!(unchanged, TEXT);
    }
}

//! The types of expressions.

use super::super::core::{Binary, Core, Local};
use super::super::syntax::{Binder, Expr, Kind, Operator, Range};
use super::super::text::{Mistake, Parsed, Position};
use super::super::types::Type;
use super::Checker;

/// Bound names and their types.
type Names = Vec<(Local, Type)>;

impl Checker<'_> {
    /// An expression that has to have this type.
    pub(super) fn check(&mut self, expr: &Expr, ty: &Type) -> Parsed<Core> {
        let (core, found) = self.infer(expr, Some(ty))?;
        if found == *ty { Ok(core) } else { Err(mismatch(expr.at, ty, &found)) }
    }

    /// An expression and its type. `wanted` helps where the expression alone does not tell its type.
    fn infer(&mut self, expr: &Expr, wanted: Option<&Type>) -> Parsed<(Core, Type)> {
        let at = expr.at;
        Ok(match &expr.kind {
            Kind::Bool(value) => (Core::Bool(*value), Type::Bool),
            Kind::Int(value) => (Core::Int(*value), Type::Int),
            Kind::Name(name) => self.named(name, at)?,
            Kind::Tuple(parts) => {
                let wanted = match wanted {
                    Some(Type::Tuple(types)) if types.len() == parts.len() => types.iter().map(Some).collect(),
                    _ => vec![None; parts.len()],
                };
                let parts = parts.iter().zip(wanted).map(|(part, wanted)| self.infer(part, wanted));
                let (cores, types) = parts.collect::<Parsed<Vec<_>>>()?.into_iter().unzip();
                (Core::Tuple(cores), Type::Tuple(types))
            }
            Kind::Braces(elements) => self.braces(at, elements, wanted)?,
            Kind::Where(binder, condition) => self.filtered(binder, condition)?,
            Kind::None => match wanted {
                Some(ty @ Type::Option(of)) => (Core::None((**of).clone()), ty.clone()),
                Some(ty) => {
                    return Err(Mistake::new(at, format!("expected {ty}, found `none`"), "`none` is an option"));
                }
                None => {
                    return Err(Mistake::new(at, "the type of `none` is not known here", "compare it with an option"));
                }
            },
            Kind::Some(of) => {
                let wanted = if let Some(Type::Option(of)) = wanted { Some(&**of) } else { None };
                let (core, ty) = self.infer(of, wanted)?;
                (Core::Some(core.into()), Type::Option(ty.into()))
            }
            Kind::Function(name, arguments) => self.function(name, arguments)?,
            Kind::Not(of) => (Core::Not(self.check(of, &Type::Bool)?.into()), Type::Bool),
            Kind::Negate(of) => (Core::Negate(self.check(of, &Type::Int)?.into()), Type::Int),
            Kind::Binary(operator, left, right) => self.binary(*operator, left, right, wanted)?,
            Kind::If(condition, then, otherwise) => {
                let condition = self.check(condition, &Type::Bool)?;
                let (then, otherwise, ty) = self.pair(then, otherwise, wanted)?;
                (Core::If(condition.into(), then.into(), otherwise.into()), ty)
            }
            Kind::ForAll(binders, body) => (self.quantified(binders, body, true)?, Type::Bool),
            Kind::Exists(binders, body) => (self.quantified(binders, body, false)?, Type::Bool),
            Kind::At(map, key) => {
                let (map, key_type, value) = self.map(map, None)?;
                (Core::At(map.into(), self.check(key, &key_type)?.into()), value)
            }
            Kind::Put(map, key, value) => {
                let (map, key_type, value_type) = self.map(map, wanted)?;
                let (key, value) = (self.check(key, &key_type)?, self.check(value, &value_type)?);
                let ty = Type::Map(key_type.into(), value_type.into());
                (Core::Put(map.into(), key.into(), value.into()), ty)
            }
            Kind::Without(map, key) => {
                let (map, key_type, value) = self.map(map, wanted)?;
                let key = self.check(key, &key_type)?;
                (Core::Without(map.into(), key.into()), Type::Map(key_type.into(), value.into()))
            }
        })
    }

    fn named(&self, name: &str, at: Position) -> Parsed<(Core, Type)> {
        if let Some((_, local, ty)) = self.scope.iter().rev().find(|(other, ..)| other == name) {
            return Ok((Core::Local(*local), ty.clone()));
        }
        let Some(variable) = self.variables.iter().position(|(other, _)| other == name) else {
            let known = self.scope.iter().map(|(name, ..)| name).chain(self.variables.iter().map(|(name, _)| name));
            let known: Vec<_> = known.map(|name| format!("`{name}`")).collect();
            let help = match (known.len(), self.without_state) {
                (_, Some(why)) if self.variables.is_empty() => why.to_owned(),
                (0, _) => "nothing has a name here".to_owned(),
                _ => format!("known here are {}", known.join(", ")),
            };
            return Err(Mistake::new(at, format!("`{name}` means nothing here"), help));
        };
        match self.without_state {
            Some(why) => Err(Mistake::new(at, format!("the state variable `{name}` cannot be used here"), why)),
            None => Ok((Core::State(variable), self.variables[variable].1.clone())),
        }
    }

    fn braces(&mut self, at: Position, elements: &[Expr], wanted: Option<&Type>) -> Parsed<(Core, Type)> {
        let Some((first, rest)) = elements.split_first() else {
            return match wanted {
                Some(ty @ (Type::Set(_) | Type::Map(..))) => Ok((Core::Empty(ty.clone()), ty.clone())),
                Some(ty) => Err(Mistake::new(at, format!("expected {ty}, found `{{}}`"), "`{}` is a set or a map")),
                None => Err(Mistake::new(
                    at,
                    "the type of `{}` is not known here",
                    "put it on the other side of the operator",
                )),
            };
        };
        let wanted = if let Some(Type::Set(of)) = wanted { Some(&**of) } else { None };
        let (core, ty) = self.infer(first, wanted)?;
        if !ty.is_flat() {
            let help = "elements of sets are int, bool, ids, and tuples of these";
            return Err(Mistake::new(first.at, format!("{ty} cannot be an element of a set"), help));
        }
        let mut cores = vec![core];
        for element in rest {
            cores.push(self.check(element, &ty)?);
        }
        Ok((Core::SetOf(cores), Type::Set(ty.into())))
    }

    fn filtered(&mut self, binder: &Binder, condition: &Expr) -> Parsed<(Core, Type)> {
        let before = self.scope.len();
        let Range::In(set) = &binder.range else { unreachable!("the parser reads no other range in braces") };
        let (names, element, is_in) = self.bind(binder, set)?;
        let condition = self.check(condition, &Type::Bool)?;
        self.scope.truncate(before);
        let names = names.into_iter().map(|(local, _)| local).collect();
        let condition = Core::binary(Binary::And, is_in, condition);
        Ok((Core::Where(names, element.clone(), condition.into()), Type::Set(element.into())))
    }

    /// Brings the names of `x in set` into scope: their types, the type of elements, and that they are an element.
    fn bind(&mut self, binder: &Binder, set: &Expr) -> Parsed<(Names, Type, Core)> {
        let (core, ty) = self.infer(set, None)?;
        let Type::Set(element) = ty else {
            let help = if let Type::Map(..) = ty { "write `keys(map)`" } else { "write a set after `in`" };
            return Err(Mistake::new(set.at, format!("expected a set, found {ty}"), help));
        };
        let types = match (&*element, binder.names.len()) {
            (_, 1) => vec![(*element).clone()],
            (Type::Tuple(parts), count) if parts.len() == count => parts.clone(),
            (_, count) => {
                let what = format!("{count} names are bound to a {element}");
                return Err(Mistake::new(binder.names[0].at, what, "bind one name, or one for each part of the tuple"));
            }
        };
        let mut names = Vec::new();
        for (name, ty) in binder.names.iter().zip(types) {
            names.push((self.declare(name, ty.clone())?, ty));
        }
        let bound = names.iter().map(|(local, _)| Core::Local(*local));
        let bound = if names.len() == 1 { Core::Local(names[0].0) } else { Core::Tuple(bound.collect()) };
        Ok((names, *element, Core::binary(Binary::In, bound, core)))
    }

    fn quantified(&mut self, binders: &[Binder], body: &Expr, is_for_all: bool) -> Parsed<Core> {
        let before = self.scope.len();
        let (mut names, mut ranges) = (Vec::new(), Vec::new());
        for binder in binders {
            match &binder.range {
                Range::All(ty) => {
                    self.ty(ty, false)?;
                    if !ty.ty.is_flat() {
                        let help = "quantify over int, bool, ids, and tuples of these";
                        return Err(Mistake::new(ty.at, format!("a quantifier cannot range over {}", ty.ty), help));
                    }
                    names.push((self.declare(&binder.names[0], ty.ty.clone())?, ty.ty.clone()));
                }
                Range::In(set) => {
                    let (bound, _, is_in) = self.bind(binder, set)?;
                    names.extend(bound);
                    ranges.push(is_in);
                }
            }
        }
        let body = self.check(body, &Type::Bool)?;
        self.scope.truncate(before);
        let operator = if is_for_all { Binary::Implies } else { Binary::And };
        let body = ranges.into_iter().rev().fold(body, |body, range| Core::binary(operator, range, body));
        Ok(if is_for_all { Core::ForAll(names, body.into()) } else { Core::Exists(names, body.into()) })
    }

    fn function(&mut self, name: &str, arguments: &[Expr]) -> Parsed<(Core, Type)> {
        match name {
            "value" => match self.infer(&arguments[0], None)? {
                (core, Type::Option(of)) => Ok((Core::Value(core.into()), *of)),
                (_, ty) => {
                    Err(Mistake::new(arguments[0].at, format!("expected an option, found {ty}"), "leave `value` out"))
                }
            },
            "keys" => {
                let (map, key, _) = self.map(&arguments[0], None)?;
                Ok((Core::Keys(map.into()), Type::Set(key.into())))
            }
            _ => {
                let binary = if name == "max" { Binary::Max } else { Binary::Min };
                let (left, right) = (self.check(&arguments[0], &Type::Int)?, self.check(&arguments[1], &Type::Int)?);
                Ok((Core::binary(binary, left, right), Type::Int))
            }
        }
    }

    /// A map, and the types of its keys and values.
    fn map(&mut self, expr: &Expr, wanted: Option<&Type>) -> Parsed<(Core, Type, Type)> {
        match self.infer(expr, wanted)? {
            (core, Type::Map(key, value)) => Ok((core, *key, *value)),
            (_, ty) => Err(Mistake::new(expr.at, format!("expected a map, found {ty}"), "only maps have keys")),
        }
    }

    fn binary(&mut self, operator: Operator, left: &Expr, right: &Expr, wanted: Option<&Type>) -> Parsed<(Core, Type)> {
        use Operator as O;
        let of = |checker: &mut Self, binary, ty: &Type, result: &Type| {
            let cores = (checker.check(left, ty)?, checker.check(right, ty)?);
            Ok((Core::binary(binary, cores.0, cores.1), result.clone()))
        };
        let (int, bool) = (&Type::Int, &Type::Bool);
        match operator {
            O::Iff => of(self, Binary::Iff, bool, bool),
            O::Implies => of(self, Binary::Implies, bool, bool),
            O::Or => of(self, Binary::Or, bool, bool),
            O::And => of(self, Binary::And, bool, bool),
            O::Less => of(self, Binary::Less, int, bool),
            O::LessOrEqual => of(self, Binary::LessOrEqual, int, bool),
            O::Greater | O::GreaterOrEqual => {
                let (left, right) = (self.check(left, int)?, self.check(right, int)?);
                let binary = if operator == O::Greater { Binary::Less } else { Binary::LessOrEqual };
                Ok((Core::binary(binary, right, left), Type::Bool))
            }
            O::Add => of(self, Binary::Add, int, int),
            O::Subtract => of(self, Binary::Subtract, int, int),
            O::Multiply => of(self, Binary::Multiply, int, int),
            O::Equal | O::Unequal => {
                let (left, right, ty) = self.pair(left, right, None)?;
                let equal = Core::Equal(ty, left.into(), right.into());
                Ok((if operator == O::Equal { equal } else { Core::Not(equal.into()) }, Type::Bool))
            }
            O::In | O::NotIn => {
                let (set, ty) = self.infer(right, None)?;
                let (Type::Set(element) | Type::Map(element, _)) = ty else {
                    let help = "write a set or a map after `in`";
                    return Err(Mistake::new(right.at, format!("expected a set or a map, found {ty}"), help));
                };
                let is_in = Core::binary(Binary::In, self.check(left, &element)?, set);
                Ok((if operator == O::In { is_in } else { Core::Not(is_in.into()) }, Type::Bool))
            }
            O::Union | O::Minus | O::Intersect | O::Subset => {
                let wanted = wanted.filter(|_| operator != O::Subset);
                let (a, b, ty) = self.pair(left, right, wanted)?;
                let Type::Set(element) = &ty else {
                    let help =
                        "this operator is one of sets: for numbers write `+` and `-`, for maps `map[key := value]`";
                    return Err(Mistake::new(left.at, format!("expected a set, found {ty}"), help));
                };
                Ok(match operator {
                    O::Subset => (Core::Subset((**element).clone(), a.into(), b.into()), Type::Bool),
                    O::Union => (Core::binary(Binary::Union, a, b), ty),
                    O::Minus => (Core::binary(Binary::Minus, a, b), ty),
                    _ => (Core::binary(Binary::Intersect, a, b), ty),
                })
            }
        }
    }

    /// Two expressions of one type.
    fn pair(&mut self, left: &Expr, right: &Expr, wanted: Option<&Type>) -> Parsed<(Core, Core, Type)> {
        let is_open = matches!(&left.kind, Kind::None) || matches!(&left.kind, Kind::Braces(of) if of.is_empty());
        if is_open && wanted.is_none() {
            let (right, ty) = self.infer(right, None)?;
            return Ok((self.check(left, &ty)?, right, ty));
        }
        let (core, ty) = self.infer(left, wanted)?;
        let right = self.check(right, &ty)?;
        Ok((core, right, ty))
    }
}

fn mismatch(at: Position, wanted: &Type, found: &Type) -> Mistake {
    let help = match (wanted, found) {
        (Type::Set(of), found) if **of == *found => "put it in braces: `{element}`",
        (Type::Option(of), found) if **of == *found => "write `some(…)`",
        (wanted, Type::Option(of)) if **of == *wanted => "write `value(…)`",
        (Type::Bool, Type::Int) => "compare it: `… = 0`",
        _ => "change the expression, or the type where it is declared",
    };
    Mistake::new(at, format!("expected {wanted}, found {found}"), help)
}

//! Calls as they were written, but for blanks.

use super::*;
use crate::trace::Event;

impl Test {
    pub(crate) fn written(&self, thread: usize, event: &Event) -> String {
        let call = &event.call;
        let thread = &self.threads[thread];
        let into = event.into.map_or(String::new(), |register| format!("let {} = ", thread.registers[register]));
        let library = &self.libraries[call.library];
        let has_it = self.libraries.iter().filter(|library| library.methods.contains_key(&call.method)).count();
        let is_clear = call.arguments.iter().any(|argument| matches!(argument, Argument::Object(_)));
        let prefix = if has_it > 1 && !is_clear { format!("{}.", library.name) } else { String::new() };
        let arguments = call.arguments.iter().map(|argument| match argument {
            Argument::Value(value) => expression(thread, value),
            Argument::Object(object) => self.objects[*object].name.clone(),
            Argument::Id(id) => self.ids[*id].clone(),
            Argument::Node(node) => node.to_string(),
            Argument::Nodes(nodes) => {
                format!("{{{}}}", nodes.iter().map(NodeNumber::to_string).collect::<Vec<_>>().join(", "))
            }
        });
        format!("{into}{prefix}{}({})", call.method, arguments.collect::<Vec<_>>().join(", "))
    }
}

fn expression(thread: &TestThread, value: &Expression) -> String {
    match value {
        Expression::Constant(value) => value.to_string(),
        Expression::Register(register) => thread.registers[*register].clone(),
        Expression::Sum(left, right) => format!("{} + {}", expression(thread, left), expression(thread, right)),
        Expression::Tuple(parts) => {
            format!("({})", parts.iter().map(|part| expression(thread, part)).collect::<Vec<_>>().join(", "))
        }
        Expression::Part(tuple, at) => format!("{}.{at}", expression(thread, tuple)),
    }
}

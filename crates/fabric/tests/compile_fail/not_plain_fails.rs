//! A value with a pointer in it means nothing to another node.

fn main() {
    fn put<T: farfield_fabric::Plain>(_: T) {}
    put(String::from("text"));
}

//! What must not compile: the hazards that the types exclude. Each program's `.stderr` beside it says why; read it
//! when it changes, since a program may fail for another reason than it should.

#[test]
fn hazards_do_not_compile() {
    let cases = trybuild::TestCases::new();
    // The right way to do it. Its being here also makes every case be built in full, which the assertions on sizes need.
    cases.pass("tests/compile_fail/right.rs");
    cases.compile_fail("tests/compile_fail/*_fails.rs");
}

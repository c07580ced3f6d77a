use super::*;

#[test]
fn arguments_are_checked() {
    assert!(parse_session("run-1.a_b").is_ok());
    for bad in ["", ".", "../x", "a/b", "a b", &"x".repeat(65)] {
        assert!(parse_session(bad).is_err(), "{bad:?}");
    }
    assert!(parse_session(&fresh_session()).is_ok());
}

#[test]
fn ends_are_described() {
    assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "exited with status 3");
    assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by SIGKILL (signal 9)");
    assert_eq!(exit_status_of(ExitStatus::from_raw(9)), 137);
    assert_eq!(exit_status_of(ExitStatus::from_raw(3 << 8)), 3);
    assert_eq!(shown(&["a".into(), "b\nc".into()]), "a b c");
}

//! Arguments, and calls that are given up.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farfield_core::{local_session, local_session_with, on_each};

use super::*;

fn small() -> CollectivesOptions {
    CollectivesOptions { chunk_bytes: 16, slots: 2 }
}

#[test]
fn invalid_options_are_errors() -> Result<()> {
    let node = local_session(1)?.remove(0);
    for (chunk_bytes, slots) in [(0, 2), (12, 2), (1 << 28, 2), (1 << 30, 2), (1 << 40, 2), (8, 0), (8, 3), (8, 4096)] {
        let error = Collectives::open(&node, "invalid", CollectivesOptions { chunk_bytes, slots }).err();
        let error = error.expect("they are invalid");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
    Collectives::open(&node, "largest", CollectivesOptions { chunk_bytes: (1 << 28) - 24, slots: 2 })?;
    Ok(())
}

/// What was opened had no buffer for a chunk: the first long call waited for one until its deadline.
#[test]
fn the_largest_chunk_is_sent_and_a_larger_one_is_refused() -> Result<()> {
    let nodes = local_session_with(2, |builder| builder.pool_bytes_max(1 << 10))?;
    let open = |chunk_bytes: usize| {
        on_each(&nodes, |node| Collectives::open(node, "all", CollectivesOptions { chunk_bytes, slots: 2 }))
    };
    let error = open(1 << 10).err().expect("there is no buffer for it");
    assert!(error.to_string().contains("hold 1000 at most: reduce it, or raise `pool_bytes_max`"), "{error}");
    let mut members = open(1000)?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    for call in 1..5u64 {
        members[0].broadcast_blocking(&ep, nodes[0].id(), &mut [call; 125])?;
        let mut data = [0; 125];
        members[1].broadcast_blocking(&far, nodes[0].id(), &mut data)?;
        assert_eq!(data, [call; 125]);
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit_are_errors_and_nothing_is_sent() -> Result<()> {
    let node = local_session(1)?.remove(0);
    let (ep, me) = (node.endpoint()?, node.id());
    let mut all = Collectives::open(&node, "all", small())?;
    let error = all.broadcast_blocking(&ep, NodeId(7), &mut [1]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error}");
    let error = all.broadcast_blocking(&ep, me, &mut [[0u64; 3]]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge { bytes: 24, max_bytes: 16 }), "{error}");
    for error in [
        all.gather_blocking(&ep, me, &[1], &mut []).unwrap_err(),
        all.all_gather_blocking(&ep, &[1], &mut [1, 2]).unwrap_err(),
        all.all_to_all_blocking(&ep, &[1], &mut []).unwrap_err(),
    ] {
        assert!(error.custom_ref::<WrongLength>().is_some(), "{error}");
    }
    let mut gathered = [0];
    all.gather_blocking(&ep, me, &[3], &mut gathered)?;
    assert_eq!(gathered, [3]);
    all.broadcast_blocking(&ep, me, &mut [(); 9])
}

#[test]
fn a_call_that_is_dropped_ends_the_object_on_all_members() -> Result<()> {
    let nodes = local_session(2)?;
    let mut members = on_each(&nodes, |node| Collectives::open(node, "all", small()))?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    {
        let mut data = [1];
        let call = pin!(members[0].all_reduce(&ep, &mut data, |a, b| a + b));
        assert!(matches!(call.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    }
    let error = members[0].broadcast_blocking(&ep, nodes[0].id(), &mut [1]).unwrap_err();
    let because = |error: &Error| error.custom_ref::<CallFailed>().map(|failed| failed.because.clone());
    assert!(because(&error).is_some_and(|because| because.custom_ref::<CallDropped>().is_some()), "{error}");
    far.set_timeout(Duration::from_secs(20));
    let error = members[1].gather_blocking(&far, nodes[0].id(), &[1], &mut []).unwrap_err();
    assert!(because(&error).is_some_and(|because| because.custom_ref::<FailedElsewhere>().is_some()), "{error}");
    assert_eq!((error.node(), error.is_timeout()), (Some(nodes[0].id()), false));
    // And once more.
    assert_eq!(
        members[1].all_reduce_blocking(&far, &mut [1], |a, b| a + b).unwrap_err().to_string(),
        error.to_string()
    );
    Ok(())
}

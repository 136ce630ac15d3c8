//! Tests of keys, rows and frames, without a terminal.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use expect_test::expect;
use jiff::Timestamp;
use serde_json::json;
use testkit_fixture::object;

use crate::frame::{Size, fits, frame, heights};
use crate::keys::{Key, parse};
use crate::rows::{self, age};
use crate::state::{Action, Mode, Section, State, Target};
use crate::table::tables;
use crate::text::{clean, cut, fit, width};

const SMALL: Size = Size { columns: 80, lines: 24 };

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// Returns a small cluster, in which a pod is in trouble.
fn state() -> State {
    let mut state = State::default();
    let node = object("node n1 cpu=4 memory=8Gi metadata.creationTimestamp=2026-01-01T00:00:00Z ready");
    state.nodes.insert("/n1".to_owned(), rows::node(&node));
    for line in [
        "pod a/web node=n1 phase=Running containers=[{name: c}] status.containerStatuses=[{name: c, ready: true, \
         state: {running: {}}}]",
        "pod b/db node=n1 phase=Running containers=[{name: c}] status.containerStatuses=[{name: c, restartCount: 7, \
         state: {waiting: {reason: CrashLoopBackOff}}}]",
    ] {
        let row = rows::pod(&object(line));
        state.pods.insert(format!("{}/{}", row.namespace, row.name), row);
    }
    let event = object(
        "event b/e type=Warning reason=BackOff message=\"Back-off restarting\" involvedObject={kind: Pod, name: db} \
         lastTimestamp=2026-01-01T00:59:00Z",
    );
    state.events.insert("b/e".to_owned(), rows::event(&event));
    state.node_usage = rows::node_usage(&json!({"items": [
        {"metadata": {"name": "n1"}, "usage": {"cpu": "1500m", "memory": "2Gi"}},
    ]}));
    state.pod_usage =
        rows::pod_usage(&json!({"items": [{"metadata": {"namespace": "a", "name": "web"}, "containers": [
            {"usage": {"cpu": "250m", "memory": "64Mi"}}, {"usage": {"cpu": "1", "memory": "1Mi"}},
        ]}]}));
    state
}

#[test]
fn bytes_of_a_terminal_are_keys() {
    for (bytes, keys) in [
        (&b"j"[..], vec![Key::Character('j')]),
        (b"\x1b[A\x1bOB", vec![Key::Up, Key::Down]),
        (b"\x1b", vec![Key::Escape]),
        (b"\x1b[5~\x1b[6~", vec![Key::PageUp, Key::PageDown]),
        (b"\x1b[1;5Cx", vec![Key::Character('x')]),
        (b"\x1b[200~", vec![]),
        (b"\x1b[", vec![]),
        (b"\r\x7f\t\x04", vec![Key::Enter, Key::Backspace, Key::Tab, Key::Control('d')]),
        ("ä\u{fffd}".as_bytes(), vec![Key::Character('ä')]),
        (b"\xff\x00", vec![]),
    ] {
        assert_eq!(parse(bytes), keys, "{bytes:?}");
    }
}

#[test]
fn hostile_text_is_shown_and_not_obeyed() {
    assert_eq!(clean("a\u{1b}[2Jb\u{7}\u{9b}\u{202e}\tc"), "a\\u{1b}[2Jb\\u{7}\\u{9b}\\u{202e}    c");
    assert_eq!((cut("abcdef", 4).as_str(), cut("abcd", 4).as_str(), cut("abc", 0).as_str()), ("abc…", "abcd", ""));
    assert_eq!((fit("日本語", 5).as_str(), width("日本")), ("日本…", 4));
    let mut state = state();
    let mut hostile = state.pods["b/db"].clone();
    hostile.status = "\u{1b}[31mred\u{1b}]0;title\u{7}".to_owned();
    state.pods.insert("b/db".to_owned(), hostile);
    state.message = "\u{1b}[2J".to_owned();
    let lines = frame(&state, SMALL, now(), false);
    assert!(lines.iter().all(|line| !line.contains('\u{1b}') && !line.contains('\u{7}')), "{lines:?}");
}

#[test]
fn a_frame_fits_a_terminal_of_any_size() {
    let mut state = state();
    for number in 0..500 {
        let row = rows::pod(&object(&format!("pod many/pod-{number:04} phase=Pending")));
        state.pods.insert(format!("{}/{}", row.namespace, row.name), row);
    }
    for section in Section::ALL {
        state.section = section;
        for columns in [20, 40, 80, 200] {
            for lines in [1, 8, 10, 24, 60] {
                for colors in [false, true] {
                    let size = Size { columns, lines };
                    let frame = frame(&state, size, now(), colors);
                    assert!(frame.len() <= lines, "{size:?}");
                    assert!(frame.iter().all(|line| fits(line, columns)), "{size:?}: {frame:#?}");
                }
            }
        }
    }
}

#[test]
fn a_frame_shows_nodes_pods_and_events() {
    let lines = frame(&state(), SMALL, now(), false);
    let text: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    expect![[r#"
        corten top   nodes 1/1   pods 1/2   cpu 37%   memory 25%
          NODE                 STATUS         CPU      CPU%  MEMORY    MEM%  PODS  AGE
          n1                   Ready          1500m    37%   2048Mi    25%   2     60m
        * NAMESPACE    POD                  READY STATUS       RST  CPU    MEMORY  AGE
        > a            web                  1/1   Running      0    1250m  65Mi    0s
          b            db                   0/1   CrashLoopBa… 7                   0s















          AGE   OBJECT                 REASON         EVENT
          60s   pod/db                 BackOff        Back-off restarting
        ↑↓ move  Tab section  / filter  l logs  s shell  d describe  Ctrl-D delete  q q…"#]]
    .assert_eq(&text.join("\n"));
}

#[test]
fn keys_move_filter_and_ask() {
    let mut state = state();
    let target = |section: Section, namespace: &str, name: &str| Target {
        section,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let pod = target(Section::Pods, "b", "db");
    let press = |state: &mut State, key: Key| state.press(&key, 5);
    let character = Key::Character;
    assert_eq!(press(&mut state, Key::Down), Action::Nothing);
    assert_eq!(press(&mut state, character('l')), Action::Logs(pod.clone()));
    assert_eq!(press(&mut state, character('s')), Action::Shell(pod.clone()));
    // A pod that comes before the chosen one does not change the choice.
    let first = rows::pod(&object("pod a/aaa phase=Running"));
    state.pods.insert("a/aaa".to_owned(), first);
    assert_eq!(press(&mut state, Key::Enter), Action::Describe(pod.clone()));
    assert_eq!(press(&mut state, Key::Control('d')), Action::Nothing);
    assert_eq!(state.mode, Mode::Confirm(pod.clone()));
    let question = frame(&state, SMALL, now(), false).pop().unwrap();
    assert_eq!(question, "Delete pod b/db? y deletes it, any other key does not.");
    assert_eq!(press(&mut state, character('n')), Action::Nothing);
    assert_eq!(state.mode, Mode::List);
    press(&mut state, Key::Control('d'));
    assert_eq!(press(&mut state, character('y')), Action::Delete(pod));
    for key in ['/', 'W', 'E', 'x'] {
        press(&mut state, character(key));
    }
    press(&mut state, Key::Backspace);
    press(&mut state, Key::Enter);
    assert_eq!(state.target(), Some(target(Section::Pods, "a", "web")));
    press(&mut state, Key::Escape);
    assert_eq!(state.shown_pods().len(), 3);
    press(&mut state, character('1'));
    assert_eq!(press(&mut state, character('l')), Action::Nothing);
    assert_eq!(state.message, "only a pod has logs");
    assert_eq!(state.target(), Some(target(Section::Nodes, "", "n1")));
    press(&mut state, Key::Tab);
    press(&mut state, Key::Tab);
    assert_eq!(state.section, Section::Events);
    assert_eq!(press(&mut state, character('q')), Action::Quit);
    assert_eq!(press(&mut state, Key::Control('c')), Action::Quit);
}

#[test]
fn a_text_is_scrolled_and_left() {
    let mut state = state();
    let text: String = (0..100).map(|number| format!("line {number}\n")).collect();
    state.show("logs".to_owned(), &text);
    state.press(&Key::End, 22);
    let lines = frame(&state, SMALL, now(), false);
    assert_eq!((lines[1].as_str(), lines[22].as_str()), ("line 78", "line 99"));
    state.press(&Key::PageUp, 22);
    assert_eq!(frame(&state, SMALL, now(), false)[1], "line 56");
    assert_eq!(state.press(&Key::Character('q'), 22), Action::Nothing);
    assert_eq!(state.mode, Mode::List);
    let pod = Target { section: Section::Pods, namespace: "a".to_owned(), name: "web".to_owned() };
    state.follow("logs".to_owned(), &text, pod);
    state.refresh(&format!("{text}line 100\n"), 22);
    assert_eq!(frame(&state, SMALL, now(), false)[22], "line 100");
}

#[test]
fn the_chosen_section_has_most_of_the_rows() {
    let mut state = state();
    state.section = Section::Events;
    let rows = heights(&state, SMALL).0;
    assert_eq!(rows, [1, 2, 16]);
}

#[test]
fn a_pipe_gets_plain_tables() {
    expect![[r#"
        NODE   STATUS   CPU     CPU%   MEMORY   MEMORY%   AGE
        n1     Ready    1500m   37%    2048Mi   25%       60m

        NAMESPACE   POD   READY   STATUS             RESTARTS   CPU     MEMORY   NODE   AGE
        a           web   1/1     Running            0          1250m   65Mi     n1     0s
        b           db    0/1     CrashLoopBackOff   7          0m      0Mi      n1     0s
    "#]]
    .assert_eq(&tables(&state(), now()));
}

#[test]
fn ages_are_those_of_kubectl() {
    let at = |text: &str| Some(text.parse().unwrap());
    for (since, shown) in [
        (None, ""),
        (at("2026-01-01T00:58:30Z"), "90s"),
        (at("2026-01-01T00:30:00Z"), "30m"),
        (at("2025-12-31T20:00:00Z"), "5h"),
        (at("2025-12-20T00:00:00Z"), "12d"),
        (at("2027-01-01T00:00:00Z"), "0s"),
    ] {
        assert_eq!(age(since, now()), shown);
    }
}

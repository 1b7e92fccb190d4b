//! The promise: however the prompt is cut into blocks and whatever the element types are, the model sees the same
//! tokens and gives the same greedy text, up to the last slot of the context.

mod fake_decoder;

use etgenai::Error;
use etgenai::chat::Message;
use etgenai::engine::LoadedComponent;
use etgenai::graph::DType;
use etgenai::runner::{Decoder, DecoderContract, EvalOptions, Flow, GenerateOptions, StopReason};
use fake_decoder::{FakeDecoder, Shape, VOCABULARY, ignore, runner};

/// Block sizes: kv only, hybrid with small, odd and large blocks, three graphs, and no AR-1 graph at all.
const BLOCKS: [&[usize]; 7] = [&[1], &[1, 7], &[1, 32], &[1, 2], &[1, 5, 32], &[7], &[3, 8]];

fn decoder(shape: &Shape) -> Decoder {
    Decoder::new(Box::new(FakeDecoder::new(shape).0), shape.window).expect("a decoder over the fake")
}

/// Prompt, then greedy tokens; the fake itself checks what each row sees.
fn greedy(shape: &Shape, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut decoder = decoder(shape);
    decoder.prefill(prompt, &mut |_, _| Flow::Continue).expect("prefill");
    (0..count)
        .map(|_| {
            let logits = decoder.logits().expect("logits");
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32;
            decoder.decode(best).expect("decode");
            best
        })
        .collect()
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|i| (i * 37 % 251) as u32).collect()
}

#[test]
fn every_block_size_gives_the_same_tokens() {
    for length in [1, 2, 6, 7, 8, 31, 32, 33, 64, 100, 200] {
        let expected = greedy(&Shape::blocks(&[1]), &prompt(length), 12);
        for blocks in BLOCKS {
            assert_eq!(greedy(&Shape::blocks(blocks), &prompt(length), 12), expected, "{blocks:?}, {length} tokens");
        }
    }
}

#[test]
fn every_element_type_gives_the_same_tokens() {
    let expected = greedy(&Shape::default(), &prompt(70), 12);
    for kv in [DType::F32, DType::U16, DType::U8] {
        for mask in [DType::F32, DType::U16, DType::U8] {
            for tokens in [DType::I32, DType::I64] {
                let shape = Shape { kv, mask, tokens, blocks: vec![1, 7], ..Shape::default() };
                assert_eq!(greedy(&shape, &prompt(70), 12), expected, "{kv:?} {mask:?} {tokens:?}");
            }
        }
    }
}

#[test]
fn sliding_windows_hide_the_same_tokens_in_every_mode() {
    for window in [1, 3, 8, 40, 500] {
        let shape = |blocks: &[usize]| Shape { window: Some(window), ..Shape::blocks(blocks) };
        let expected = greedy(&shape(&[1]), &prompt(90), 12);
        for blocks in BLOCKS {
            assert_eq!(greedy(&shape(blocks), &prompt(90), 12), expected, "window {window}, {blocks:?}");
        }
    }
}

#[test]
fn the_whole_context_is_usable_whatever_the_block_size() {
    for blocks in [&[1][..], &[1, 7], &[1, 32]] {
        let shape = Shape { context: 64, ..Shape::blocks(blocks) };
        assert_eq!(decoder(&shape).context_capacity(), 64);
        let expected = greedy(&Shape { context: 64, ..Shape::blocks(&[1]) }, &prompt(63), 0);
        assert_eq!(greedy(&shape, &prompt(63), 0), expected, "63 tokens and the one to come");
        assert_eq!(greedy(&shape, &prompt(40), 23).len(), 23);
        let error = decoder(&shape).prefill(&prompt(64), &mut |_, _| Flow::Continue).expect_err("one too many");
        assert!(matches!(error, Error::ContextFull { needed: 65, capacity: 64, .. }), "{error}");
    }
}

#[test]
fn rewinding_decoder_and_going_on_is_like_never_having_been_there() {
    for blocks in BLOCKS {
        let shape = Shape::blocks(blocks);
        let mut decoder = decoder(&shape);
        decoder.prefill(&prompt(50), &mut |_, _| Flow::Continue).expect("prefill");
        decoder.rewind(20);
        assert_eq!((decoder.position(), decoder.logits()), (20, None));
        decoder.prefill(&[9; 40], &mut |_, _| Flow::Continue).expect("prefill again");
        let other: Vec<u32> = prompt(20).into_iter().chain([9; 40]).collect();
        let logits = decoder.logits().expect("logits").to_vec();
        decoder.reset();
        decoder.prefill(&other, &mut |_, _| Flow::Continue).expect("from scratch");
        assert_eq!(decoder.logits().expect("logits"), logits, "{blocks:?}");
    }
}

#[test]
fn logits_of_every_row_are_those_of_one_token_at_a_time() {
    let tokens = prompt(45);
    let mut expected = Vec::new();
    let mut single = decoder(&Shape::blocks(&[1]));
    for &token in &tokens {
        single.decode(token).expect("decode");
        expected.push(single.logits().expect("logits").to_vec());
    }
    for blocks in BLOCKS {
        let mut rows = Vec::new();
        decoder(&Shape::blocks(blocks))
            .prefill_all_logits(&tokens, &mut |index, row| {
                assert_eq!(index, rows.len());
                rows.push(row.to_vec());
                Ok(Flow::Continue)
            })
            .expect("prefill");
        assert_eq!(rows, expected, "{blocks:?}");
    }
}

#[test]
fn stopping_between_blocks_keeps_the_blocks_done() {
    let shape = Shape::blocks(&[1, 8]);
    let mut decoder = decoder(&shape);
    let done = decoder
        .prefill(&prompt(40), &mut |done, _| if done >= 16 { Flow::Stop } else { Flow::Continue })
        .expect("stopped, not failed");
    assert_eq!((done, decoder.position(), decoder.logits()), (16, 16, None));
    decoder.prefill(&prompt(40)[16..], &mut |_, _| Flow::Continue).expect("the rest");
    assert_eq!(decoder.tokens(), prompt(40));
}

#[test]
fn a_prompt_takes_as_few_calls_as_its_blocks_allow() {
    let (component, control) = FakeDecoder::new(&Shape::blocks(&[1, 32]));
    let mut decoder = Decoder::new(Box::new(component), None).expect("decoder");
    decoder.prefill(&prompt(70), &mut |_, _| Flow::Continue).expect("prefill");
    assert_eq!(control.lock().expect("control").calls, [32, 32, 6]);
    decoder.decode(1).expect("decode");
    assert_eq!(control.lock().expect("control").calls, [32, 32, 6, 1]);
}

#[test]
fn bad_tokens_are_refused_before_anything_runs() {
    let mut decoder = decoder(&Shape::default());
    let outside = decoder.prefill(&[1, VOCABULARY as u32], &mut |_, _| Flow::Continue).expect_err("outside");
    assert!(outside.to_string().contains("token id 258 is outside"), "{outside}");
    assert!(decoder.prefill(&[], &mut |_, _| Flow::Continue).is_err());
    assert_eq!(decoder.position(), 0);
    decoder.decode(1).expect("still usable");
}

#[test]
fn a_window_mask_needs_a_window() {
    let shape = Shape { window: Some(4), ..Shape::default() };
    let error = Decoder::new(Box::new(FakeDecoder::new(&shape).0), None).err().expect("no window given");
    assert!(error.to_string().contains("window size is not known"), "{error}");
}

#[test]
fn contract_is_read_from_the_graphs() {
    let shape = Shape { kv: DType::U8, window: Some(4), context: 128, ..Shape::default() };
    let contract = DecoderContract::from_graphs(FakeDecoder::new(&shape).0.graphs()).expect("valid graphs");
    assert_eq!((contract.context_length, contract.vocabulary, contract.cache_slots()), (128, VOCABULARY, 127));
    assert_eq!((contract.layers.len(), contract.kv_dtype, contract.has_window_mask), (2, DType::U8, true));
    assert_eq!(contract.kv_bytes(), 2 * 2 * 2 * 3 * 127);
}

#[test]
fn conversations_long_short_long_are_the_same_in_every_mode() {
    let play = |blocks: &[usize]| {
        let (mut runner, _) = runner(&Shape { context: 512, ..Shape::blocks(blocks) });
        let questions = ["a long question ".repeat(8), "short".into(), "another long question ".repeat(6), "?".into()];
        let options = GenerateOptions { max_new_tokens: Some(20), ..Default::default() };
        let replies = questions
            .map(|question| runner.generate(&[Message::user(question)], &options, &mut ignore).expect("a reply").text);
        (replies, runner.history_tokens().to_vec())
    };
    let expected = play(&[1]);
    for blocks in BLOCKS {
        assert_eq!(play(blocks), expected, "{blocks:?}");
    }
}

#[test]
fn perplexity_does_not_depend_on_the_block_size() {
    let tokens = prompt(150);
    let options = EvalOptions { window: 64, full_windows_only: false };
    let evaluate = |blocks: &[usize]| {
        let (mut runner, _) = runner(&Shape { context: 64, ..Shape::blocks(blocks) });
        runner.evaluate(&tokens, &options, &mut |_| Flow::Continue).expect("perplexity")
    };
    let expected = evaluate(&[1]);
    assert_eq!((expected.scored_tokens, expected.windows), (63 + 63 + 21, 3));
    assert!((expected.perplexity - expected.mean_nll.exp()).abs() < 1e-9 && expected.perplexity > 1.0);
    for blocks in [&[1, 7][..], &[1, 32]] {
        assert_eq!(evaluate(blocks).mean_nll, expected.mean_nll, "{blocks:?}");
    }
}

#[test]
fn perplexity_options_and_progress() {
    let (mut runner, control) = runner(&Shape { context: 64, ..Shape::default() });
    let tokens = prompt(150);
    let full = EvalOptions { window: 64, full_windows_only: true };
    let mut seen = Vec::new();
    let result = runner.evaluate(&tokens, &full, &mut |progress| {
        seen.push((progress.scored, progress.total));
        Flow::Continue
    });
    assert_eq!(result.expect("perplexity").scored_tokens, 126);
    assert_eq!(seen, (1..=126).map(|scored| (scored, 126)).collect::<Vec<_>>());
    for window in [1, 65] {
        let error = runner.evaluate(&tokens, &EvalOptions { window, ..full }, &mut |_| Flow::Continue);
        assert!(error.expect_err("window").to_string().contains("from 2 to the context capacity of 64"));
    }
    assert!(runner.evaluate(&tokens[..1], &full, &mut |_| Flow::Continue).is_err(), "nothing to score");
    let stopped = runner.evaluate(&tokens, &full, &mut |_| Flow::Stop);
    assert!(matches!(stopped, Err(Error::Cancelled)));
    runner.cancel_handle().cancel();
    assert!(matches!(runner.evaluate(&tokens, &full, &mut |_| Flow::Continue), Err(Error::Cancelled)));
    assert!(runner.evaluate(&tokens, &full, &mut |_| Flow::Continue).is_ok(), "a cancel is used up");
    control.lock().expect("control").nan = true;
    assert!(matches!(runner.evaluate(&tokens, &full, &mut |_| Flow::Continue), Err(Error::Engine { .. })));
}

#[test]
fn single_steps_give_the_tokens_of_a_run() {
    for temperature in [0.0, 0.8] {
        let (mut whole, _) = runner(&Shape::default());
        let mut options = GenerateOptions { max_new_tokens: Some(15), ..Default::default() };
        (options.sampling.temperature, options.sampling.seed) = (temperature, Some(3));
        let (mut steps, _) = runner(&Shape::default());
        let messages = [Message::user("hello")];
        let expected = whole.generate(&messages, &options, &mut ignore).expect("a run");
        let prompt = steps.encode(&messages).expect("prompt");
        steps.prefill(&prompt).expect("prefill");
        let mut tokens = Vec::new();
        while tokens.len() < expected.tokens.len() {
            let token = steps.sample(&options.sampling).expect("sample");
            tokens.push(token);
            steps.decode(token).expect("decode");
        }
        assert_eq!(tokens, expected.tokens, "temperature {temperature}");
        assert_eq!(steps.position(), prompt.len() + tokens.len());
    }
}

#[test]
fn the_last_slot_is_used_and_then_the_context_is_full() {
    for blocks in [&[1][..], &[1, 7], &[1, 32]] {
        let (mut runner, _) = runner(&Shape { context: 64, ..Shape::blocks(blocks) });
        let result = runner.generate(&[Message::user("fill it")], &GenerateOptions::default(), &mut ignore);
        let result = result.expect("a reply");
        assert_eq!(result.stop_reason, StopReason::ContextFull, "{blocks:?}");
        assert_eq!(runner.position(), 64);
    }
}

//! The promise: however the prompt is cut into blocks and whatever the element types are, the model sees the same
//! tokens and gives the same greedy text, up to the last slot of the context.

mod fake_decoder;
mod fake_evictor;

use etgenai::Error;
use etgenai::chat::Message;
use etgenai::engine::LoadedComponent;
use etgenai::graph::DType;
use etgenai::runner::{
    Decoder, DecoderContract, DecoderParts, DecodingMode, EvalOptions, Flow, GenerateOptions, LookaheadOptions,
    RequantRounding, Runner, RunnerParts, SamplingOptions, StopReason,
};
use fake_decoder::{FakeDecoder, Shape, VOCABULARY, ignore, runner, tokenizer};
use fake_evictor::FakeEvictor;

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
    assert!(outside.to_string().contains(&format!("token id {VOCABULARY} is outside")), "{outside}");
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

/// As upstream names a hybrid or lookahead decoder's two graphs.
fn named(blocks: [usize; 2]) -> Shape {
    Shape { blocks: blocks.to_vec(), names: vec!["kv_forward", "prefill_forward"], ..Shape::default() }
}

fn parts(shape: &Shape, mode: DecodingMode) -> DecoderParts {
    let component = Box::new(FakeDecoder::new(shape).0);
    DecoderParts { window: shape.window, mode, ..DecoderParts::new(component) }
}

/// Prompt, then `count` greedy tokens, of a decoder that is set up already.
fn go_on(decoder: &mut Decoder, prompt: &[u32], count: usize) -> Vec<u32> {
    decoder.prefill(prompt, &mut |_, _| Flow::Continue).expect("prefill");
    let mut tokens = Vec::new();
    for _ in 0..count {
        let logits = decoder.logits().expect("logits");
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32;
        decoder.decode(best).expect("decode");
        tokens.push(best);
    }
    tokens
}

#[test]
fn modes_choose_their_graphs() {
    let shape = named([1, 32]);
    let expected = greedy(&Shape::blocks(&[1]), &prompt(70), 20);
    for (mode, graphs) in [(DecodingMode::Kv, 1), (DecodingMode::Hybrid, 2), (DecodingMode::Auto, 2)] {
        let mut decoder = Decoder::from_parts(parts(&shape, mode)).expect("decoder");
        assert_eq!(decoder.contract().graphs.len(), graphs);
        assert_eq!(go_on(&mut decoder, &prompt(70), 20), expected, "{mode:?}");
    }
    let error = Decoder::from_parts(parts(&Shape::blocks(&[1, 7]), DecodingMode::Hybrid)).err().expect("no such graph");
    assert!(error.to_string().contains("needs the graph prefill_forward"), "{error}");
}

#[test]
fn quantized_logits_and_older_shapes_give_the_same_tokens() {
    let expected = greedy(&Shape::default(), &prompt(70), 12);
    for logits in [DType::U16, DType::U8] {
        assert_eq!(greedy(&Shape { logits, ..Shape::default() }, &prompt(70), 12), expected);
    }
    for (per_head, rank_three_mask) in [(true, false), (false, true), (true, true)] {
        let shape = Shape { per_head, rank_three_mask, kv: DType::U8, mask: DType::U16, ..Shape::default() };
        assert_eq!(greedy(&shape, &prompt(70), 12), expected, "{per_head} {rank_three_mask}");
    }
}

#[test]
fn quantized_logits_are_real_numbers() {
    let logits = |dtype| {
        let mut decoder = decoder(&Shape { logits: dtype, ..Shape::default() });
        decoder.prefill(&prompt(3), &mut |_, _| Flow::Continue).expect("prefill");
        decoder.logits().expect("logits").to_vec()
    };
    let (exact, quantized) = (logits(DType::F32), logits(DType::U16));
    assert!(exact.iter().zip(&quantized).all(|(a, b)| (a - b).abs() <= 1.0 / 16384.0));
}

#[test]
fn a_graph_without_cache_computes_the_whole_text_each_time() {
    let expected = greedy(&Shape { context: 40, ..Shape::blocks(&[1]) }, &prompt(20), 12);
    let whole = Shape { context: 40, ..Shape::blocks(&[40]) };
    assert_eq!(greedy(&whole, &prompt(20), 12), expected, "alone");
    let beside = Shape { context: 40, ..named([1, 40]) };
    assert_eq!(greedy(&beside, &prompt(20), 12), expected, "for the prompt");
    // It only begins a text: what comes later goes through the graph that has a cache.
    let (component, control) = FakeDecoder::new(&beside);
    let mut later = Decoder::new(Box::new(component), None).expect("decoder");
    later.prefill(&prompt(20), &mut |_, _| Flow::Continue).expect("prefill");
    later.prefill(&prompt(3), &mut |_, _| Flow::Continue).expect("a later turn");
    assert_eq!(control.lock().expect("control").calls, [20, 1, 1, 1]);
    let mut decoder = decoder(&whole);
    decoder.prefill(&prompt(39), &mut |_, _| Flow::Continue).expect("fills the context");
    let error = decoder.decode(1).expect_err("there is no slot left");
    assert!(matches!(error, Error::ContextFull { needed: 41, capacity: 40, .. }), "{error}");
}

/// All lookahead sizes that fit 64 rows, and some more.
const LOOKAHEADS: [LookaheadOptions; 6] = [
    LookaheadOptions { ngram: 5, window: 8, gcap: 8 },
    LookaheadOptions { ngram: 2, window: 1, gcap: 1 },
    LookaheadOptions { ngram: 3, window: 5, gcap: 2 },
    LookaheadOptions { ngram: 6, window: 3, gcap: 4 },
    LookaheadOptions { ngram: 4, window: 15, gcap: 6 },
    LookaheadOptions { ngram: 2, window: 32, gcap: 32 },
];

#[test]
fn lookahead_gives_the_tokens_of_plain_decoding() {
    for (window, kv, two_encodings, lengths) in [
        (None, DType::F32, false, [1, 31, 100]),
        (Some(9), DType::U8, true, [2, 33, 150]),
        (None, DType::U16, true, [32, 64, 190]),
    ] {
        let shape = Shape { window, kv, two_encodings, ..named([64, 32]) };
        for length in lengths {
            {
                // To the last slot that any graph of the file has: 256 - 32.
                let count = 224 - length;
                let expected = greedy(&Shape { window, ..Shape::blocks(&[1]) }, &prompt(length), count);
                for options in LOOKAHEADS {
                    let mut decoder =
                        Decoder::from_parts(parts(&shape, DecodingMode::Lookahead(options))).expect("decoder");
                    assert_eq!(
                        go_on(&mut decoder, &prompt(length), count),
                        expected,
                        "{options:?} {length} {window:?}"
                    );
                    assert!(decoder.lookahead_stats().expect("lookahead").calls > 0 || length > 192);
                }
            }
        }
    }
}

/// A text that repeats itself: a script in which each token follows from the one before.
fn cycle(length: usize) -> impl Iterator<Item = u32> {
    (0u32..).map(|i| 97 + i % 7).take(length)
}

#[test]
fn lookahead_saves_calls_on_text_that_repeats() {
    let shape = named([64, 32]);
    let (component, control) = FakeDecoder::new(&shape);
    let mode = DecodingMode::Lookahead(LOOKAHEADS[0]);
    let mut decoder =
        Decoder::from_parts(DecoderParts { mode, ..DecoderParts::new(Box::new(component)) }).expect("decoder");
    decoder.prefill(&prompt(4), &mut |_, _| Flow::Continue).expect("prefill");
    control.lock().unwrap().follow = Some(|token| 97 + (token.wrapping_sub(97) + 1) % 7);
    decoder.decode(97).expect("decode");
    let mut tokens = vec![97];
    while tokens.len() < 120 {
        let logits = decoder.logits().expect("logits");
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32;
        decoder.decode(best).expect("decode");
        tokens.push(best);
    }
    assert_eq!(tokens, cycle(120).collect::<Vec<_>>());
    let stats = decoder.lookahead_stats().expect("lookahead");
    assert!(stats.accepted > 80 && stats.calls < 40, "{stats:?}");
    assert_eq!(stats.calls + stats.accepted, 120, "every token was computed or guessed");
}

#[test]
fn lookahead_is_lossless_with_sampling_too() {
    let reply = |mode: DecodingMode, temperature: f32| {
        let shape = named([64, 32]);
        let component = Box::new(FakeDecoder::new(&shape).0);
        let parts = RunnerParts { decoding: mode, ..RunnerParts::new(component, tokenizer()) };
        let mut runner = Runner::from_parts(parts).expect("runner");
        let sampling = SamplingOptions { temperature, top_k: 3, seed: Some(7), ..Default::default() };
        let options = GenerateOptions { max_new_tokens: Some(60), sampling, ..Default::default() };
        let first = runner.generate(&[Message::user("abcabcabcabc")], &options, &mut ignore).expect("reply");
        let second = runner.generate(&[Message::user("again")], &options, &mut ignore).expect("second turn");
        (first.tokens, second.tokens)
    };
    for temperature in [0.0, 0.3, 1.5] {
        let plain = reply(DecodingMode::Auto, temperature);
        for options in LOOKAHEADS {
            assert_eq!(reply(DecodingMode::Lookahead(options), temperature), plain, "{options:?} {temperature}");
        }
    }
}

#[test]
fn lookahead_that_does_not_fit_is_refused_with_both_numbers() {
    let mode = DecodingMode::Lookahead(LookaheadOptions { ngram: 5, window: 8, gcap: 9 });
    let error = Decoder::from_parts(parts(&named([64, 32]), mode)).err().expect("68 rows in 64").to_string();
    assert!(error.contains("needs blocks of 68 tokens, the widest graph takes 64"), "{error}");
}

#[test]
fn caches_are_converted_between_prefill_and_decode_both_ways() {
    for (kv, per_head) in [(DType::U8, false), (DType::U16, false), (DType::U8, true)] {
        let shape = Shape { kv, per_head, two_encodings: true, ..named([1, 32]) };
        let turns = |shape: &Shape, mode| {
            let mut decoder = Decoder::from_parts(parts(shape, mode)).expect("decoder");
            let mut tokens = go_on(&mut decoder, &prompt(45), 20);
            // A later turn prefills again, over slots of both kinds; the third begins with a rewind.
            tokens.extend(go_on(&mut decoder, &prompt(40), 20));
            decoder.rewind(70);
            tokens.extend(go_on(&mut decoder, &prompt(33), 20));
            tokens
        };
        // The fake finds every level that was converted twice, or not at all.
        let expected = turns(&Shape { two_encodings: false, ..shape.clone() }, DecodingMode::Kv);
        assert_eq!(turns(&shape, DecodingMode::Hybrid), expected, "{kv:?}");
        assert_eq!(turns(&shape, DecodingMode::Kv), expected, "{kv:?}: nothing to convert");
        let rounding = RequantRounding::Truncate;
        let truncating = DecoderParts { requant: rounding, ..parts(&shape, DecodingMode::Hybrid) };
        let mut decoder = Decoder::from_parts(truncating).expect("decoder");
        assert_eq!(go_on(&mut decoder, &prompt(45), 20), expected[..20], "whole numbers are not rounded");
    }
}

#[test]
fn an_attention_sink_goes_on_when_the_context_is_full() {
    for (kv, two_encodings) in [(DType::F32, false), (DType::U8, true)] {
        for mode in [DecodingMode::Kv, DecodingMode::Hybrid, DecodingMode::Lookahead(LOOKAHEADS[2])] {
            let blocks = if matches!(mode, DecodingMode::Lookahead(_)) { [32, 8] } else { [1, 8] };
            let shape = Shape { context: 96, kv, two_encodings, ..named(blocks) };
            let evictor = Box::new(FakeEvictor::new(&shape, 4, 40));
            let mut decoder =
                Decoder::from_parts(DecoderParts { evictor: Some(evictor), ..parts(&shape, mode) }).expect("decoder");
            assert!(decoder.is_unbounded());
            go_on(&mut decoder, &prompt(50), 200);
            assert_eq!(decoder.position(), 250);
            assert!(decoder.evicted_tokens() >= 160 && decoder.evicted_tokens().is_multiple_of(40), "{mode:?}");
            // A prompt longer than the context, on top.
            decoder.prefill(&prompt(150), &mut |_, _| Flow::Continue).expect("evicts on the way");
            assert_eq!(decoder.position(), 400);
            // What is still there can be gone back to, what is gone cannot: then only the sink is left.
            assert_eq!(decoder.rewind(395), 395);
            assert_eq!(decoder.rewind(100), 4);
            assert_eq!((decoder.position(), decoder.evicted_tokens()), (4, 0));
            go_on(&mut decoder, &prompt(50), 100);
        }
    }
}

#[test]
fn evictors_that_do_not_fit_are_refused() {
    let shape = named([1, 32]);
    let refusal = |evictor: FakeEvictor| {
        let parts = DecoderParts { evictor: Some(Box::new(evictor)), ..parts(&shape, DecodingMode::Auto) };
        Decoder::from_parts(parts).err().expect("does not fit").to_string()
    };
    assert!(refusal(FakeEvictor::new(&shape, 4, 31)).contains("at least 32"));
    assert!(refusal(FakeEvictor::new(&shape, 200, 100)).contains("224 cache slots"));
    let other = Shape { context: 128, ..shape.clone() };
    assert!(refusal(FakeEvictor::new(&other, 4, 40)).contains("not the KV caches"));
    assert!(refusal(FakeEvictor::new(&Shape::blocks(&[1]), 4, 40)).contains("has no graph prefill_forward"));
}

#[test]
fn a_conversation_with_a_sink_is_longer_than_the_context() {
    let shape = Shape { context: 128, ..named([1, 16]) };
    let component = Box::new(FakeDecoder::new(&shape).0);
    let evictor = Some(Box::new(FakeEvictor::new(&shape, 4, 32)) as Box<dyn LoadedComponent>);
    let parts = RunnerParts { evictor, ..RunnerParts::new(component, tokenizer()) };
    let mut runner = Runner::from_parts(parts).expect("runner");
    let options = GenerateOptions { max_new_tokens: Some(30), ..Default::default() };
    for turn in 0..8 {
        let question = Message::user(format!("turn {turn}: tell me more about it"));
        let result = runner.generate(&[question], &options, &mut ignore).expect("reply");
        assert_eq!(result.stop_reason, StopReason::Length);
        let stats = &result.stats;
        assert!(stats.prefilled_tokens < 64, "turn {turn} computed {} tokens again", stats.prefilled_tokens);
    }
    assert!(runner.position() > 400);
}

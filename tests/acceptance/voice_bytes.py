"""The table of one voice: bytes that a device holds, and bytes between devices."""

GPT2 = 50257 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768  # 124,439,808
GPT200 = 110 * (12 * 12288**2 + 13 * 12288) + (51200 + 2048) * 12288 + 2 * 12288  # 199,985,233,920
STATES = "'weights', 'gradients', 'master weights', 'momentum', 'variance'"
CACHE = "fit llama-2-70b 8xH100 --recipe fp16-weights --cached 8192"

MEMORY = [
    (
        "parameters of GPT-2",
        GPT2,
        "td.load_model('gpt2').parameters",
        "typed('list models gpt2')['gpt2']['parameters']",
        # fp16 weights: 2 B each
        (2 * GPT2, "held('gpt2', td.Layout(), 'mixed-adam-16', 'weights')"),
    ),
    (
        "parameters of gpt-200b",
        GPT200,
        "td.load_model('gpt-200b').parameters",
        "typed('list models gpt-200b')['gpt-200b']['parameters']",
    ),
    (
        # 12 h^2 + 13 h; beside 110 of them are embeddings and the last norm
        "parameters of one of its layers",
        1_812_099_072,
        "(td.load_model('gpt-200b').parameters - (51200 + 2048 + 2) * 12288) / 110",
    ),
    (
        "weights of 200 billion parameters in half precision on GPUs of 40 GB: 400 / 40",
        10,
        "ask(14)['fewest']['fp16-weights']",
        "td.formulas.minimum_devices(200 * 10**9, 'fp16-weights')",
        # a CUDA context of 0.99 GB on each counts too, 1 / 10: 40.9 of 40 GB; 1 / 11: 38.4
        (11, "stages_that_hold_the_weights()"),
    ),
    (
        "mixed-precision Adam for 200 billion on GPUs of 40 GB: 16 x 200 / 40",
        80,
        "ask(14)['fewest']['mixed-adam-16']",
        "ask(14)['zero3_degree']",
        "td.formulas.minimum_devices(200 * 10**9)",
        "td.formulas.zero3_minimum_degree(200 * 10**9)",
    ),
    (
        "its states without a cut: 16 B x 200 billion",
        3_200_000_000_000,
        "ask(14)['copy_bytes']",
        "sum(td.formulas.state_bytes(200 * 10**9).values())",
        # gpt-200b has 0.007 % fewer parameters than 200 billion
        (16 * GPT200, f"held('gpt-200b', td.Layout(), 'mixed-adam-16', {STATES})"),
    ),
    (
        "the same with momentum and variance in a byte each: 10 x 200 / 40",
        50,
        "td.formulas.minimum_devices(200 * 10**9, 'mixed-adam-8bit', '40GB')",
    ),
    (
        "states of 30 billion: 16 B x 30 billion",
        480_000_000_000,
        "ask(15)['copy_bytes']",
        "ask(24)['copy_bytes']",
        "ask(25)['states']['copies, fp32']",
        "sum(td.formulas.state_bytes(30 * 10**9).values())",
    ),
    (
        "a GPU's share of them on 8: 480 / 8",
        60_000_000_000,
        "ask(16)['states_each']",
        "ask(25)['states']['8 slices']",
        "ask(24)['states'][0]",  # 2 slices x 4 stages
    ),
    (
        # 30e9 / 8 = 3.75e9: x 16; (4 + 12 / 4); (2 + 14 / 4); 16 / 4
        "ZeRO 0 to 3 over 4 copies of 2 slices x 4 stages, 30 billion",
        [60e9, 26.25e9, 20.625e9, 15e9],
        "ask(24)['states']",
        "[sum(td.formulas.state_bytes(3_750_000_000, zero=z, dp=4).values()) for z in range(4)]",
    ),
    (
        # gpt2 evenly over 8 copies: weights stay, 14 of 16 B are sharded under ZeRO-2
        "states of GPT-2 on each of 8 copies under ZeRO-2: (2 + 14 / 8) B",
        (2 + 14 / 8) * GPT2,
        f"sum(td.formulas.state_bytes({GPT2}, zero=2, dp=8).values())",
        f"held('gpt2', td.Layout(dp=8, zero=2), 'mixed-adam-16', {STATES})",
    ),
    (
        "a layer of 26 GB cut over 4 GPUs, weights alone",
        6_500_000_000,
        "ask(3)['held']['fp32-weights']",
    ),
    (
        "a layer of 26 GB with Adam's states on GPUs of 24 GB: 104 / 24",
        5,
        "ask(3)['fewest']['fp32-adam']",
        "td.formulas.minimum_devices(6_500_000_000, 'fp32-adam', '24GB')",
    ),
    (
        # 80 layers x (keys and values) x 8 heads x 128 x 2 B x 8,192 tokens
        "keys and values that Llama-2-70B keeps of 8,192 tokens",
        80 * 2 * 8 * 128 * 2 * 8192,
        "held('llama-2-70b', td.Layout(), 'fp16-weights', 'key-value cache', cached=8192)",
        f"sum(row['bytes'] for row in typed('{CACHE}')['rows'] if 'key' in row['tensor'])",
    ),
]

BYTES = [
    (
        # 2 (16 - 1) / 16 x 2 B x 13e9 / 2 slices
        "gradients that a rank sends, 13 billion, 16 copies of 2 slices",
        24_375_000_000,
        "ask(20)['sent']['dp']",
    ),
    (
        # 2 x 7 / 8 x 2 B x 30e9 / 4 stages
        "gradients that a rank sends, 30 billion, 8 copies of 4 stages",
        26_250_000_000,
        "ask(22)['ring_bytes'][0]",
    ),
    (
        # LeNet's 6 x 25 + ... = 129,068 numbers x 4 B x 2 x 3 / 4
        "bytes that each of 4 copies of LeNet sends in a step",
        129_068 * 4 * 2 * 3 // 4,
        "ask(28)['bytes of each']",
        "6 * sum(ask(26)['parameters'])",
    ),
    (
        "all-reduces of a split decoder layer, forward and backward: 2 + 2",
        [2, 2],
        "calls_of('decoder_block')",
        "calls_of('self_attention', 'mlp')",
        "[ask(30)['all_reduces'] // 4] * 2",  # of two layers
        "calls_of_a_training()",
        # Q, K and V, and gate and up, in matrices of their own: 1 + 1 more backward, and 1
        (7, "shown(15, 'all-reduces of a layer, nothing fused')"),
    ),
    (
        # all-gather (p - 1)/p of 32 x 64 x 8 B to 4 ranks, twice: 2 x 3 x 16,384 B
        "bytes of a feed-forward layer split over 4, 32 tokens of 64, float64",
        98_304,
        "ask(5)['sent']",
        "sum(td.layer_calls('mlp', ranks=4, batch=1, tokens=32, width=64)[0].sent)",
    ),
    (
        # each of 4 workers fetches one block of A and one of B: 4 x 2 x 512^2 x 4 B
        "bytes between 2 x 2 workers, SUMMA of 1,024, float32",
        8_388_608,
        "ask(1, blocking='2x2')['sent']",
        "ask(7, m=1024, n=1024, k=1024)['moved']['2x2x1']",
        "16 * ask(9)['numbers']['move little between devices']",  # of 256
        "summa(1024)",
        "typed('matmul 1024')['rows'][0]['measured']",
        "typed('matmul 1024')['rows'][0]['predicted']",
    ),
    (
        "bytes between 2 x 2 workers, SUMMA of 4,096, float32: 16 times as many",
        134_217_728,
        "ask(7, m=4096, n=4096, k=4096, memory=10**9)['moved']['2x2x1']",
        "summa(4096)",
    ),
    (
        # m n k / T^3 tiles of 2 T^2 x 4 B; and 2 T^3 FLOP over 2 T^2 x 4 B
        "FLOP per byte that a tile of 128 loads, float32: T / 4",
        32.0,
        "ask(1)['intensity']",
        "4 * ask(9)['numbers']['use again what was loaded']",  # of 32
    ),
    (
        "messages of layer-wise training on 4 workers: 3 up, 3 down",
        6,
        "ask(29)['transfers']",
        "ask(26)['transfers']",
        "td.program(td.schedule('naive', 4, 1), block_bytes=1).traffic.count",
    ),
    (
        "all-gather of 500 x 2,000 float32 for 4 workers: 3 x 4 MB",
        12_000_000,
        "shown(3, 'all-gather of Y')",
    ),
]

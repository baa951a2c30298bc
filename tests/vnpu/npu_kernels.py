"""Small kernels for the tests of the virtual NPU."""
import triton
import triton.language as tl


@triton.jit
def scaled(x, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) * factor
    tl.store(out + at, (tl.exp(value) + tl.load(y + at, mask=at < n, other=0.0)).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def product(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out = silu(a b): the cube core makes the product, the vector cores what follows."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        depth = k + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + depth[None, :],
                       mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0)
        right = tl.load(b + depth[:, None] * N + columns[None, :],
                        mask=(depth[:, None] < K) & (columns[None, :] < N), other=0.0)
        sums += tl.dot(left, right)
    sums = sums / (1.0 + tl.exp(-sums))
    tl.store(out + rows[:, None] * N + columns[None, :], sums, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def same_place(x, out, BLOCK: tl.constexpr):
    """Every program stores to the same elements."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.program_id(0) * BLOCK + at))


@triton.jit
def neighbour(x, BLOCK: tl.constexpr):
    """A program reads what the one before it writes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at + BLOCK, tl.load(x + at) + 1.0)


@triton.jit
def adds_up(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + tl.program_id(0) * BLOCK + at))


@triton.jit
def past_the_end(x, out, BLOCK: tl.constexpr):
    here = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + here, tl.load(x + here))


@triton.jit
def too_large(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2.0)


# A sum of products carried round a loop, stored before the next product is added to it: the states before each chunk.
# The compiler loses the product of the first form, and keeps it in the others.

@triton.jit
def states_before(x, y, states, chunks, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        tl.store(states + chunk * B * B + at, state)
        state += tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))


@triton.jit
def states_decayed(x, y, states, chunks, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        tl.store(states + chunk * B * B + at, state)
        state = state * 0.5 + tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))


@triton.jit
def states_scaled(x, y, states, chunks, one, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        tl.store(states + chunk * B * B + at, state)
        state = state * one + tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))


@triton.jit
def states_from(x, y, states, initial, chunks, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.load(initial + at)
    for chunk in range(chunks):
        tl.store(states + chunk * B * B + at, state)
        state += tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))


@triton.jit
def states_after(x, y, states, chunks, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        state += tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))
        tl.store(states + chunk * B * B + at, state)


@triton.jit
def ragged_product(a, out, M, B: tl.constexpr):
    """a a^T of M rows; all B rows of the result are stored, those past M are zero."""
    rows, columns = tl.arange(0, B), tl.arange(0, 32)
    left = tl.load(a + rows[:, None] * 32 + columns[None, :], mask=rows[:, None] < M, other=0.0)
    tl.store(out + rows[:, None] * B + rows[None, :], tl.dot(left, tl.trans(left)))


@triton.jit
def added_sums(a, b, out, B: tl.constexpr):
    """The row sums of a product, added to `out` by an atomic."""
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    at = rows[:, None] * B + columns[None, :]
    found = tl.dot(tl.load(a + at), tl.load(b + at))
    tl.atomic_add(out + rows, tl.sum(found * 0.5, axis=1))


@triton.jit
def padded_sums(a, b, weights, out, K, N, B: tl.constexpr):
    """Row sums of a product of N columns, weighed; the tile has B columns, of which N are loaded."""
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    left = tl.load(a + rows[:, None] * K + columns[None, :], mask=columns[None, :] < K, other=0.0)
    right = tl.load(b + rows[:, None] * N + columns[None, :],
                    mask=(rows[:, None] < K) & (columns[None, :] < N), other=0.0)
    weight = tl.load(weights + columns, mask=columns < N, other=0.0)
    tl.store(out + rows, tl.sum(tl.dot(left, right) * weight[None, :], axis=1))


@triton.jit
def padded_sums_dropped(a, b, weights, out, K, N, B: tl.constexpr):
    """The same, with the columns that were not loaded dropped behind the product, as rule ASC216 writes it."""
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    left = tl.load(a + rows[:, None] * K + columns[None, :], mask=columns[None, :] < K, other=0.0)
    right = tl.load(b + rows[:, None] * N + columns[None, :],
                    mask=(rows[:, None] < K) & (columns[None, :] < N), other=0.0)
    weight = tl.load(weights + columns, mask=columns < N, other=0.0)
    found = tl.where(columns[None, :] < N, tl.dot(left, right), 0.0)
    tl.store(out + rows, tl.sum(found * weight[None, :], axis=1))


@triton.jit
def padded_sums_added(a, b, weights, out, K, N, B: tl.constexpr):
    """The same again, with the product in parts, and the sum of them masked after the loop."""
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    weight = tl.load(weights + columns, mask=columns < N, other=0.0)
    found = tl.zeros([B, B], dtype=tl.float32)
    for k in range(0, K, B):
        left = tl.load(a + rows[:, None] * K + (k + columns)[None, :], mask=(k + columns)[None, :] < K, other=0.0)
        right = tl.load(b + (k + rows)[:, None] * N + columns[None, :],
                        mask=((k + rows)[:, None] < K) & (columns[None, :] < N), other=0.0)
        found += tl.dot(left, right)
    found = tl.where(columns[None, :] < N, found, 0.0)
    tl.store(out + rows, tl.sum(found * weight[None, :], axis=1))


@triton.jit
def differences(x, bias, out, rows, R: tl.constexpr, D: tl.constexpr):
    """Of every pair of neighbours in x + bias, the difference."""
    at, half = tl.arange(0, D), tl.arange(0, D // 2)
    block = tl.make_block_ptr(x, (rows, D), (D, 1), (0, 0), (R, D), (1, 0))
    tile = tl.load(block, boundary_check=(0, 1), padding_option="zero") + tl.load(bias + at)[None, :]
    first, second = tl.split(tl.reshape(tile, [R, D // 2, 2]))
    tl.store(out + tl.arange(0, R)[:, None] * (D // 2) + half[None, :], first - second)


@triton.jit
def turned_product(x, bias, out, rows, R: tl.constexpr, D: tl.constexpr):
    """t t^T, with t the differences and sums of the pairs of neighbours in x + bias, as a rotary embedding has them."""
    at, row = tl.arange(0, D), tl.arange(0, R)
    block = tl.make_block_ptr(x, (rows, D), (D, 1), (0, 0), (R, D), (1, 0))
    tile = tl.load(block, boundary_check=(0, 1), padding_option="zero") + tl.load(bias + at)[None, :]
    first, second = tl.split(tl.reshape(tile, [R, D // 2, 2]))
    turned = tl.reshape(tl.join(first - second, first + second), [R, D])
    tl.store(out + row[:, None] * R + row[None, :], tl.dot(turned, tl.trans(turned)))


@triton.jit
def gathered_product(x, bias, out, rows, R: tl.constexpr, D: tl.constexpr):
    """As `turned_product`, its pairs taken apart and put together by gathers."""
    at, row = tl.arange(0, D), tl.arange(0, R)
    block = tl.make_block_ptr(x, (rows, D), (D, 1), (0, 0), (R, D), (1, 0))
    tile = tl.load(block, boundary_check=(0, 1), padding_option="zero") + tl.load(bias + at)[None, :]
    even = tl.broadcast_to(2 * tl.arange(0, D // 2)[None, :], [R, D // 2])
    first, second = tl.gather(tile, even, 1), tl.gather(tile, even + 1, 1)
    pair, left = tl.broadcast_to(at[None, :] // 2, [R, D]), (at[None, :] & 1) == 0
    turned = tl.where(left, tl.gather(first - second, pair, 1), tl.gather(first + second, pair, 1))
    tl.store(out + row[:, None] * R + row[None, :], tl.dot(turned, tl.trans(turned)))


@triton.jit
def one_before(x, out, n, BLOCK: tl.constexpr):
    """Every element's predecessor, 0 before the first."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at - 1, mask=(at > 0) & (at < n), other=0.0), mask=at < n)


@triton.jit
def one_before_bounded(x, out, n, BLOCK: tl.constexpr, FORM: tl.constexpr):
    """The same, under masks that bound the load, as rule ASC217 writes them."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FORM == "compared":
        found = tl.load(x + at - 1, mask=(at >= 1) & (at < n), other=0.0)
    else:
        before = at + -1
        found = tl.load(x + before, mask=(before >= 0) & (before < n), other=0.0)
    tl.store(out + at, found, mask=at < n)


@triton.jit
def scalar_before(x, out, step):
    """Each program's predecessor, a scalar that the first one has not."""
    c = tl.program_id(0)
    tl.store(out + c, tl.load(x + c * step - step, mask=c >= 1, other=0.0))


@triton.jit
def scalar_before_clamped(x, out, step):
    c = tl.program_id(0)
    tl.store(out + c, tl.load(x + tl.where(c >= 1, c * step - step, 0), mask=c >= 1, other=0.0))


@triton.jit
def product_of_all(a, out, count, B: tl.constexpr):
    """The product of `count` matrices, the last one leftmost."""
    rows = tl.arange(0, B)
    at = rows[:, None] * B + rows[None, :]
    found = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for k in range(count):
        found = tl.dot(tl.load(a + k * B * B + at), found)
    tl.store(out + at, found)


@triton.jit
def stored_and_added_sums(a, b, stored, added, B: tl.constexpr):
    """The row sums of a product, stored in one place and added in another."""
    rows, columns = tl.arange(0, B), tl.arange(0, B)
    at = rows[:, None] * B + columns[None, :]
    sums = tl.sum(tl.dot(tl.load(a + at), tl.load(b + at)) * 0.5, axis=1)
    tl.store(stored + rows, sums)
    tl.atomic_add(added + rows, sums)


@triton.jit
def places(out, n, shift, BLOCK: tl.constexpr):
    """1 where an element is not the last one, 0 there, by indices of 64 bits."""
    at = tl.arange(0, BLOCK)
    wide = tl.program_id(0).to(tl.int64) * BLOCK + at
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.where(wide + shift < n, 1.0, 0.0),
             mask=tl.program_id(0) * BLOCK + at < n)


@triton.jit
def sum_from_a_choice(x, y, out, n, chosen, D: tl.constexpr, MASKED: tl.constexpr, APART: tl.constexpr):
    """A sum over the rows of y, masked or doubled, that begins with x if `chosen`; or x is added in the end."""
    at = tl.arange(0, D)
    start = tl.zeros([D], dtype=tl.float32)
    if chosen > 0:
        start = tl.load(x + at)
    total = tl.zeros([D], dtype=tl.float32) if APART else start
    for row in range(n):
        term = tl.load(y + row * D + at)
        total += tl.where(at <= row, term, 0.0) if MASKED else term * 2.0
    tl.store(out + at, total + start if APART else total)


@triton.jit
def sum_from_an_if(x, y, out, n, chosen, D: tl.constexpr, MASKED: tl.constexpr):
    """`sum_from_a_choice` as a kernel has it: with nothing between the `if` and the loop."""
    at = tl.arange(0, D)
    total = tl.zeros([D], dtype=tl.float32)
    if chosen > 0:
        total = tl.load(x + at)
    for row in range(n):
        term = tl.load(y + row * D + at)
        total += tl.where(at <= row, term, 0.0) if MASKED else term * 2.0
    tl.store(out + at, total)


@triton.jit
def delta_states(x, y, states, chunks, B: tl.constexpr):
    """`states_before`, with y less what the state gives: the sum is a factor, too."""
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        tl.store(states + chunk * B * B + at, state)
        left = tl.load(x + chunk * B * B + at)
        state += tl.dot(left, tl.load(y + chunk * B * B + at) - 0.01 * tl.dot(left, state))


@triton.jit
def states_now_and_then(x, y, states, chunks, every, decay, B: tl.constexpr, MASKED: tl.constexpr):
    """The states before each chunk whose number `every` divides."""
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for chunk in range(chunks):
        if MASKED:
            tl.store(states + chunk // every * B * B + at, state, mask=(at >= 0) & (chunk % every == 0))
        else:
            if chunk % every == 0:
                tl.store(states + chunk // every * B * B + at, state)
        state = state * decay + tl.dot(tl.load(x + chunk * B * B + at), tl.load(y + chunk * B * B + at))

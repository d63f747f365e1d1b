"""The paper's statements, each a test with its number; docs/operators.md has the table.

Where a statement needs a condition or has a slip, the test asserts what is true, and its comment
says what the paper has.
"""

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import sqrtm

from deconditional import CMP, Bags
from deconditional.operators import (
    ConditionalMeanOperator,
    DeconditionalMeanOperator,
    Features,
    FiniteRankOperator,
    Function,
)
from helpers import assert_close, gram, ragged_bags, replicated_mediation

RNG = np.random.default_rng(7)
KERNEL = gk.Matern32(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
BAGS = ragged_bags([3, 1, 7, 4, 5, 2], d=2, weighted=True)
OBSERVED, X, Z = RNG.normal(size=(6, 1)), RNG.normal(size=(6, 2)), RNG.normal(size=6)
SPREAD = np.linspace(-1.5, 1.5, 4)[:, None]
RIDGE, EPSILON = 0.05, 0.02

# A finite world: X takes six values, Y takes six, and P(x | y) is a table.
X_VALUES = np.linspace(-1.5, 1.5, 6)[:, None]
Y_VALUES = np.linspace(-2.0, 2.0, 6)[:, None]
TABLE = RNG.dirichlet(np.ones(6), size=6)  # row y: P(X | Y = y)
P_Y = RNG.dirichlet(5 * np.ones(6))
X_KERNEL, Y_KERNEL = gk.Matern32(lengthscale=0.7), gk.Matern32(lengthscale=0.9)
K, L = gram(X_KERNEL, X_VALUES), gram(Y_KERNEL, Y_VALUES)
START = RNG.bit_generator.state
PHI = Features.of_points(X_KERNEL, X_VALUES)
PSI = Features.of_points(Y_KERNEL, Y_VALUES)


def true_conditional(table=TABLE):
    """C of the finite world: C ℓ_y is the mean of k_X under P(X | y), for each of the y."""
    return FiniteRankOperator(PHI, table.T @ np.linalg.inv(L), PSI)


@pytest.fixture(autouse=True)
def same_draws_in_any_order():
    """Every test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = START


@pytest.fixture(scope="module")
def conditional():
    return ConditionalMeanOperator(BAGS, KERNEL, MEDIATOR_KERNEL, ridge=RIDGE)


@pytest.fixture(scope="module")
def deconditional(conditional):
    return DeconditionalMeanOperator(conditional, OBSERVED, epsilon=EPSILON)


# --------------------------------------------------------------------------- section 2.2


def test_section_2_2_definition_of_the_conditional_mean_operator():
    # C ℓ_y = μ_{X|Y=y}, C* f = E[f(X) | Y = ·], and C = C_XY C_YY⁻¹.
    c = true_conditional()
    embeddings = c(Function.canonical(Y_KERNEL, Y_VALUES))
    assert_close(embeddings(X_VALUES), K @ TABLE.T)
    f = Function.from_points(X_KERNEL, X_VALUES, RNG.normal(size=6))
    assert_close(c.adjoint(f)(Y_VALUES), TABLE @ f(X_VALUES))
    c_xy = FiniteRankOperator(PHI, (P_Y[:, None] * TABLE).T, PSI)
    c_yy = FiniteRankOperator(PSI, np.diag(P_Y), PSI)
    assert_close((c @ c_yy).matrix, c_xy.matrix)


def test_section_2_2_covariance_operators_are_second_moments():
    # C_YY = E[ℓ_Y ⊗ ℓ_Y] is not centred, so ⟨g, C_YY g'⟩ = E[g(Y) g'(Y)]; the paper writes Cov.
    c_yy = FiniteRankOperator(PSI, np.diag(P_Y), PSI)
    g, h = (Function.from_points(Y_KERNEL, Y_VALUES, RNG.normal(size=6)) for _ in range(2))
    moment = P_Y @ (g(Y_VALUES) * h(Y_VALUES))
    covariance = moment - (P_Y @ g(Y_VALUES)) * (P_Y @ h(Y_VALUES))
    assert_close(g.inner(c_yy(h)), moment)
    assert abs(moment - covariance) > 0.01


def test_section_2_2_definition_of_the_deconditional_mean_operator():
    # D = (C C_YY)* (C C_YY C*)⁻¹ has D* C* f = f where the conditional laws span those of X: the
    # six rows of the table are independent. Where they are not, no operator can, and D* C* f is f
    # seen by the embeddings alone.
    f = Function.from_points(X_KERNEL, X_VALUES, RNG.normal(size=6))

    def recovered(table):
        # C C_YY C* = Φ S Φ*, S = Tᵀ diag(p) T; its pseudo-inverse in orthonormal coordinates.
        c, root = true_conditional(table), sqrtm(K).real
        s = table.T @ np.diag(P_Y) @ table
        unroot = np.linalg.inv(root)
        inverse = unroot @ np.linalg.pinv(root @ s @ root, rcond=1e-10) @ unroot
        c_yy = FiniteRankOperator(PSI, np.diag(P_Y), PSI)
        d = (c @ c_yy).adjoint @ FiniteRankOperator(PHI, inverse, PHI)
        return d, d.adjoint(c.adjoint(f))

    operator, back = recovered(TABLE)
    assert_close(back(X_VALUES), f(X_VALUES), tolerance=1e-6)
    embedding = operator(Function.canonical(X_KERNEL, X_VALUES))
    means = true_conditional().adjoint(f)
    assert_close(embedding.inner(means), f(X_VALUES), tolerance=1e-6)
    poor = TABLE.copy()
    poor[3:] = TABLE[:3]  # three conditional laws for six values
    _, back = recovered(poor)
    assert np.abs(back(X_VALUES) - f(X_VALUES)).max() > 0.05
    assert_close(poor @ back(X_VALUES), poor @ f(X_VALUES), tolerance=1e-6)


# --------------------------------------------------------------------------- section 3


def test_proposition_3_2_the_conditional_mean_process():
    # X | Y = y ~ N(sin 2y, 0.4²), k Gaussian, m(x) = sin x. With a = sin 2y and s² = 0.16,
    # q(y, y') = v r exp(-(a - a')² / 2(l² + 2s²)), r² = l² / (l² + 2s²), ν(y) = sin(a) exp(-s²/2).
    # Draws of f at Gauss-Hermite nodes, averaged over P(X | y), are draws of g: their moments lie
    # within five standard errors. The covariance of f at the conditional means does not.
    l2, v, s = 0.6**2, 1.4, 0.4
    y = np.array([-0.9, -0.2, 0.3, 0.7])
    a = np.sin(2 * y)
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    weights = weights / weights.sum()
    points = (a[:, None] + s * nodes).ravel()
    spread = l2 + 2 * s**2
    q = v * np.sqrt(l2 / spread) * np.exp(-((a[:, None] - a) ** 2) / (2 * spread))
    nu = np.sin(a) * np.exp(-(s**2) / 2)

    kernel = gk.RBF(lengthscale=0.6, variance=v)
    bags = Bags.from_list(
        list(points.reshape(4, 16, 1)), mediator=y, weights=[weights for _ in range(4)]
    )
    embeddings = Function(Features(kernel, bags), np.eye(4))
    assert_close(embeddings.inner(embeddings), q, tolerance=1e-6)

    draws = 100_000
    values, vectors = np.linalg.eigh(gram(kernel, np.append(points, 0.1)[:, None]))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    noise = np.random.default_rng(0).normal(size=(draws, len(values)))
    everything = noise @ root.T
    f = np.sin(points) + everything[:, :-1]
    g = f.reshape(draws, 4, 16) @ weights
    mean_error = np.sqrt(np.diag(q).max() / draws)
    assert np.abs(g.mean(0) - nu).max() < 5 * mean_error < np.abs(g.mean(0) - np.sin(a)).max()
    # A sample covariance of Gaussians has variance (q_ii q_jj + q_ij²) / draws.
    error = np.sqrt((np.outer(np.diag(q), np.diag(q)) + q**2) / draws)
    sample = np.cov(g.T)
    assert (np.abs(sample - q) < 5 * error).all()
    wrong = v * np.exp(-((a[:, None] - a) ** 2) / (2 * l2))
    assert (np.abs(sample - wrong) > 5 * error).any()
    standardised = (g - nu) / np.sqrt(np.diag(q))
    assert np.abs((standardised**4).mean(0) - 3).max() < 5 * np.sqrt(96 / draws)
    # Cov(f(x), g(y)) = E[k(x, X) | Y = y] = ⟨k_x, μ_{X|Y=y}⟩.
    x = np.array([[0.1]])
    upsilon = Function.canonical(kernel, x).inner(embeddings)[0]
    sample = (everything[:, -1:] * (g - nu)).mean(0)
    assert (np.abs(sample - upsilon) < 5 * np.sqrt((v * np.diag(q) + upsilon**2) / draws)).all()


def test_proposition_3_2_estimates_approach_the_process():
    # q̂(y, y') = ⟨Ĉ ℓ_y, Ĉ ℓ_y'⟩ of the same law, from 16 and from 256 times as many points.
    l2, s = 0.6**2, 0.4
    y = np.linspace(-1, 1, 40)
    a = np.sin(2 * y)
    spread = l2 + 2 * s**2
    q = np.sqrt(l2 / spread) * np.exp(-((a[:, None] - a) ** 2) / (2 * spread))
    errors = []
    for size in (1, 16, 256):
        draws = np.random.default_rng(3).normal(size=(40, size))
        x = (a[:, None] + s * draws).ravel()
        k = np.exp(-((x[:, None] - x) ** 2) / (2 * l2)) if size < 256 else None
        operator = ConditionalMeanOperator(
            Bags.from_points(x, np.repeat(np.arange(40), size), mediator=y),
            gk.RBF(lengthscale=0.6),
            gk.RBF(lengthscale=0.5),
            ridge=0.05 / (40 * size),
        )
        estimate = operator.embedding(y)
        estimate = estimate.inner(estimate)
        if k is not None:
            p = np.kron(np.eye(40), np.full((size, 1), 1 / size))
            w = np.linalg.solve(
                operator.out_of.gram + 0.05 / size * np.eye(40), operator.out_of.gram
            )
            assert_close(estimate, w.T @ p.T @ k @ p @ w)
        errors.append(np.sqrt(np.mean((estimate - q) ** 2)))
    assert errors[1] < 0.5 * errors[0] and errors[2] < 0.5 * errors[1]


def test_proposition_3_3_the_deconditional_posterior():
    # f at the six values of X, z = T f + noise: Bayes' rule in information form shares no formula
    # with the proposition. The operators are the true ones, so nothing is estimated.
    sigma2, m = 0.09, np.cos(X_VALUES[:, 0])
    z = TABLE @ m + RNG.normal(size=6)
    precision = np.linalg.inv(K) + TABLE.T @ TABLE / sigma2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (np.linalg.solve(K, m) + TABLE.T @ z / sigma2)

    c = true_conditional()
    embeddings = c(Function.canonical(Y_KERNEL, Y_VALUES))
    upsilon = Function.canonical(X_KERNEL, X_VALUES).inner(embeddings)
    q = embeddings.inner(embeddings)
    prior = Function.from_points(X_KERNEL, X_VALUES, np.linalg.solve(K, m))
    nu = c.adjoint(prior)(Y_VALUES)
    system = q + sigma2 * np.eye(6)
    assert_close(m + upsilon @ np.linalg.solve(system, z - nu), mean)
    assert_close(K - upsilon @ np.linalg.solve(system, upsilon.T), covariance)


def test_equations_8_and_9_the_estimated_posterior(conditional, deconditional):
    # σ² = Mε. The paper has "the noise variance σ²/N as the inverse regularization parameter": it
    # is ε itself that is σ²/M, M the number of observations.
    w = conditional.weights(OBSERVED)
    p = np.zeros((BAGS.n_points, 6))
    p[np.arange(BAGS.n_points), BAGS.bag] = BAGS.weights
    a = p @ w
    k, cross, own = gram(KERNEL, BAGS.points), gram(KERNEL, X, BAGS.points), gram(KERNEL, X)
    joint = np.block([[own, cross @ a], [a.T @ cross.T, a.T @ k @ a + 6 * EPSILON * np.eye(6)]])
    # The precision of a joint Gaussian holds the conditional law of its first block.
    precision = np.linalg.inv(joint)[:6, :6]
    covariance = np.linalg.inv(precision)
    mean = -covariance @ np.linalg.inv(joint)[:6, 6:] @ Z
    assert_close(deconditional.recover(Z)(X), mean)
    assert_close(deconditional.covariance(X), covariance)


def test_section_3_2_covariance_is_what_the_round_trip_loses(conditional, deconditional):
    # k_d(x, x') = k(x, x') - ⟨k_x, Ĉ D̂ k_x'⟩. The paper has D̂ Ĉ, which maps mediators' functions
    # to themselves and cannot be applied to k_x'.
    trip = conditional @ deconditional
    features = Function.canonical(KERNEL, X)
    lost = gram(KERNEL, X) - features.inner(trip(features))
    assert_close(deconditional.covariance(X), lost)
    f = Function.from_points(KERNEL, X, RNG.normal(size=6))
    assert_close((trip.adjoint(f) - trip(f)).norm, 0.0)
    with pytest.raises(ValueError, match="different spaces"):
        (deconditional @ conditional)(features)


def test_section_3_3_standard_and_shrinkage_operators():
    # One law with equal bags: then the two estimators are the same, so that a difference between
    # them (appendix C.2 reports 0.02 to 0.03 for equal bags) is one of regularisation alone.
    equal = ragged_bags([4, 4, 4, 4, 4, 4], d=2)
    options = {"kernel": KERNEL, "mediator_kernel": MEDIATOR_KERNEL, "ridge": RIDGE}
    one, other = (
        ConditionalMeanOperator(equal, cmo=cmo, **options) for cmo in ("standard", "shrinkage")
    )
    a = replicated_mediation(MEDIATOR_KERNEL, equal, RIDGE, OBSERVED)
    expected = gram(KERNEL, X, equal.points) @ a
    assert_close(one.embedding(OBSERVED)(X), expected)
    assert_close(other.embedding(OBSERVED)(X), expected)
    ragged = [
        ConditionalMeanOperator(BAGS, cmo=cmo, **options).embedding(OBSERVED)(X)
        for cmo in ("standard", "shrinkage")
    ]
    assert np.abs(ragged[0] - ragged[1]).max() > 0.01


# --------------------------------------------------------------------------- section 4


def assert_minimiser(risk, operator, into, out_of, ridge):
    """The risk is quadratic: flat at the operator, and higher by a known amount elsewhere."""
    least = risk(operator)
    rng = np.random.default_rng(5)
    for _ in range(8):
        change = FiniteRankOperator(into, rng.normal(size=(len(into), len(out_of))), out_of)
        change = (1.0 / change.norm) * change
        step = 1e-4
        up, down = risk(operator + step * change), risk(operator - step * change)
        slope, curvature = (up - down) / (2 * step), (up + down - 2 * least) / step**2
        assert abs(slope) < 1e-8
        # Along a unit direction the penalty alone contributes 2 ridge to the curvature.
        assert curvature > 2 * ridge * (1 - 1e-3)
        for size in (0.1, 1.0, 10.0):
            risen = risk(operator + size * change) - least
            assert_close(risen, 0.5 * curvature * size**2, tolerance=1e-3)
            assert risen > 0


def test_equation_11_the_conditional_operator_minimises_its_risk(conditional):
    # Directions in the span, and in features that the estimate does not use.
    elsewhere = Features(KERNEL, ragged_bags([3, 1, 7, 4, 5, 2], d=2, seed=9))
    for into, out_of in [
        (conditional.into, conditional.out_of),
        (elsewhere, Features.of_points(MEDIATOR_KERNEL, OBSERVED)),
    ]:
        assert_minimiser(conditional.risk, conditional, into, out_of, RIDGE)


def test_proposition_4_1_the_deconditional_operator_minimises_its_risk(deconditional):
    elsewhere = Features(KERNEL, ragged_bags([3, 1, 7, 4, 5, 2], d=2, seed=9))
    for into, out_of in [
        (deconditional.into, deconditional.out_of),
        (Features.of_points(MEDIATOR_KERNEL, BAGS.mediator), elsewhere),
    ]:
        assert_minimiser(deconditional.risk, deconditional, into, out_of, EPSILON)


def test_proposition_4_1_closed_form(conditional, deconditional):
    # The normal equations D (Ĉ Ψ̃ Ψ̃* Ĉ* + Mε) = Ψ̃ Ψ̃* Ĉ*, as matrices on the features. The last
    # lines of the paper's proof have A Φ and Φ where Aᵀ Φᵀ and Φᵀ are meant.
    w, kbar = conditional.weights(OBSERVED), conditional.into.gram
    left = deconditional.matrix @ (kbar @ w @ w.T + 6 * EPSILON * np.eye(6))
    assert_close(left, w.T)
    expected = np.linalg.solve(w.T @ kbar @ w + 6 * EPSILON * np.eye(6), w.T)
    assert_close(deconditional.matrix, expected)


def test_section_4_deconditioning_undoes_conditioning_in_the_limit(conditional):
    # D̂* Ĉ* f tends, as ε → 0, to the projection of f onto the embeddings at ỹ: to f itself for f
    # in their span, and to no more than that for any other f. A direction in which Q̂ has the
    # eigenvalue q is shrunk by q / (q + Mε).
    embeddings = conditional.embedding(SPREAD)
    q = embeddings.inner(embeddings)
    inside = Function(conditional.into, embeddings.coefficients @ RNG.normal(size=4))
    outside = Function.from_points(KERNEL, X, RNG.normal(size=6))
    weights = np.linalg.solve(q, embeddings.inner(outside))
    projection = Function(conditional.into, embeddings.coefficients @ weights)
    assert (projection - outside).norm > 0.1
    for epsilon in (1e-2, 1e-5, 1e-10):
        operator = DeconditionalMeanOperator(conditional, SPREAD, epsilon=epsilon)
        shrunk = 4 * epsilon / (4 * epsilon + np.linalg.eigvalsh(q)[0])
        for f, limit in [(inside, inside), (outside, projection)]:
            back = operator.adjoint(conditional.adjoint(f))
            assert_close(operator.recover(conditional.conditional_mean(f)(SPREAD))(X), back(X))
            assert (back - limit).norm <= (shrunk + 1e-7) * limit.norm
    assert shrunk < 1e-4


def test_section_4_the_risk_asks_for_the_other_inverse(conditional):
    # Eq. (12) drives D Ĉ ℓ_y to ℓ_y. What D is for is Ĉ D = Id on the fine functions it can reach.
    # As ε → 0 with few mediators both hold: the first at every ỹ, the second on the embeddings.
    operator = DeconditionalMeanOperator(conditional, SPREAD, epsilon=1e-10)
    features = Function.canonical(MEDIATOR_KERNEL, SPREAD)
    back = operator(conditional(features))
    assert ((back - features).norm < 1e-4).all()
    embeddings = conditional.embedding(SPREAD)
    assert ((conditional(operator(embeddings)) - embeddings).norm < 1e-4).all()
    more = np.linspace(-3, 3, 9)[:, None]  # nine mediators, six bags: rank six
    operator = DeconditionalMeanOperator(conditional, more, epsilon=1e-9)
    features, embeddings = Function.canonical(MEDIATOR_KERNEL, more), conditional.embedding(more)
    assert (operator(conditional(features)) - features).norm.max() > 0.1
    assert ((conditional(operator(embeddings)) - embeddings).norm < 1e-4).all()


def test_theorem_4_2_rate_of_the_excess_risk():
    # H_ℓ has the finite dimension that the theorem asks for: three values of Y, three of X. D*
    # reconstructs perfectly, so E_d(D*) = 0. With a = 1, c = c' = 2 and ι = 1 the theorem has
    # N = M³, λ = N^(-1/3), ε = M^(-1/3) and an excess risk of order M^(-2/3): the exponent between
    # sample sizes falls towards -2/3, because the risk that ε costs is of order ε² in the end.
    kernel = gk.Matern12(lengthscale=1 / np.log(10.0))
    points = Features.of_points(kernel, [0.0, 1.0, 2.0])
    k, p_y, table = points.gram, np.array([0.3, 0.3, 0.4]), 0.8 * np.eye(3) + 0.2 / 3
    embeddings = Function(points, table.T)
    excess = []
    for m in (10**2, 10**3, 10**4, 10**5, 10**6):
        risks = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            n = m**3
            counts = rng.multinomial(n, p_y)
            drawn = [rng.multinomial(count, row) for count, row in zip(counts, table, strict=True)]
            frequencies = np.array(drawn) / counts[:, None]
            observed = np.sqrt(rng.multinomial(m, p_y) / m)
            # Samples with repeats: eqs. (1) and (12) with shares in place of single examples.
            w = np.linalg.solve(k + n ** (-1 / 3) * np.diag(n / counts), k)
            a = frequencies.T @ w * observed
            inner = a.T @ k @ a + m ** (-1 / 3) * np.eye(3)
            matrix = observed[:, None] * np.linalg.solve(inner, a.T)
            errors = FiniteRankOperator(points, matrix, points).squared_errors(points, embeddings)
            risks.append(p_y @ errors)
        excess.append(np.mean(risks))
    exponents = np.diff(np.log10(excess))
    assert (np.diff(exponents) < 0).all() and (exponents > -2 / 3 - 0.01).all()
    assert exponents[-1] < -0.6


# --------------------------------------------------------------------------- appendix E.2


def posterior_covariance(a, k, sigma2, fine2):
    """k̂_d(x, x) at the bags' own points, with high-resolution noise."""
    n, m = a.shape
    system = a.T @ (k + fine2 * np.eye(n)) @ a + sigma2 * np.eye(m)
    return k - k @ a @ np.linalg.solve(system, a.T @ k)


def test_appendix_e_2_push_through_form():
    # The paper's last line has I_M where the identity of the n points, I_n, is needed; and it is
    # the push-through identity, for σ > 0, not Woodbury's.
    x = RNG.normal(size=(6, 2))
    k = gram(KERNEL, x)
    a = RNG.normal(size=(6, 4))
    sigma2, fine2 = 0.3, 0.2
    outer = a @ a.T
    inverse = np.linalg.inv(outer @ (k + fine2 * np.eye(6)) + sigma2 * np.eye(6))
    assert_close(k - k @ inverse @ outer @ k, posterior_covariance(a, k, sigma2, fine2))


def test_appendix_e_2_degeneracy_needs_as_many_observations_as_points():
    # "When σ = ς = 0 [the covariance] degenerates to 0": in the limit, and if A has rank n, so with
    # no fewer observations than points. Otherwise n - rank A directions keep their variance.
    x, y = RNG.normal(size=(6, 2)), np.linspace(-2, 2, 6)[:, None]
    samples = ConditionalMeanOperator.from_samples(x, y, KERNEL, MEDIATOR_KERNEL, ridge=1e-3)
    k = gram(KERNEL, x)
    for mediator, left in [(np.linspace(-2, 2, 9), 0), (y, 0), (np.linspace(-2, 2, 4), 2)]:
        a = samples.weights(mediator)
        assert np.linalg.matrix_rank(a, tol=1e-6) == 6 - left
        traces = []
        for sigma2 in (1e-2, 1e-6, 1e-12):
            operator = DeconditionalMeanOperator(samples, mediator, epsilon=sigma2 / len(mediator))
            covariance = operator.covariance(x)
            assert_close(k - covariance, k - posterior_covariance(a, k, sigma2, 0.0))
            traces.append(np.trace(covariance))
        values = np.linalg.eigvalsh(covariance)
        assert traces[0] > traces[1] > traces[2]
        assert (values > 1e-3).sum() == left
        assert np.abs(values[: 6 - left]).max() < 1e-5


def test_appendix_e_2_high_resolution_noise_prevents_degeneracy():
    # With ς > 0 and σ → 0 the covariance stays: that of a regression on noisy fine values,
    # ς² K (K + ς² I)⁻¹, once A has rank n.
    x, y = RNG.normal(size=(6, 2)), np.linspace(-2, 2, 6)
    kernel_values = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4}
    fixed = kernel_values | {
        "mediator_kernel.lengthscale": 0.9,
        "ridge": 1e-3,
        "noise_std": 1e-6,
        "fine_noise_std": 0.5,
    }
    bags = Bags.from_points(x, np.arange(6), mediator=y)
    model = CMP(KERNEL, MEDIATOR_KERNEL, trend="none", fine_noise=True, fixed=fixed)
    post = model.fit(bags, RNG.normal(size=6)).predict(x)
    k = gram(KERNEL, x)
    limit = 0.25 * k @ np.linalg.inv(k + 0.25 * np.eye(6))
    assert_close(post.variance, np.diag(limit), tolerance=1e-6)
    a = replicated_mediation(MEDIATOR_KERNEL, bags, 1e-3, bags.mediator)
    assert_close(posterior_covariance(a, k, 1e-12, 0.25), limit, tolerance=1e-6)
    assert np.diag(limit).min() > 0.1

"""The same attention, several ways, behind one signature:

    attend(q_BLHK, k_BSHK, value_BSHK, terms, mask_BLS, dropatt) -> out_BLHK

where `terms` is what distance adds to a score, `mask_BLS` says which states a query may see
(at least itself), and `dropatt` is the probability of dropping an attention weight.
"""

from . import matmul, reference, sdpa
from .cuda import CUDA_KERNELS as CUDA_KERNELS

KERNELS = {"reference": reference.attend, "sdpa": sdpa.attend, "matmul": matmul.attend}

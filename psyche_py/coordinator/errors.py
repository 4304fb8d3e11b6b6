"""The rule book's refusals, with the codes of the program (``programs/coordinator``), in the same order."""

from __future__ import annotations

from enum import IntEnum

from psyche_py.errors import RunStateError


class ErrorCode(IntEnum):
    """Custom program error codes of the coordinator program (Anchor's base, 6000)."""

    UpdateConfigFinished = 6000
    UpdateConfigNotHalted = 6001
    CoordinatorAccountIncorrectSize = 6002
    ClientsFull = 6003
    ConfigSanityCheckFailed = 6004
    ModelSanityCheckFailed = 6005
    ProgressSanityCheckFailed = 6006
    SignerNotAClient = 6007
    SignerMismatch = 6008
    CloseCoordinatorNotHalted = 6009
    NoActiveRound = 6010
    InvalidWitness = 6011
    InvalidRunState = 6012
    DuplicateWitness = 6013
    InvalidHealthCheck = 6014
    Halted = 6015
    InvalidCheckpoint = 6016
    WitnessesFull = 6017
    CannotResume = 6018
    InvalidWithdraw = 6019
    InvalidCommitteeSelection = 6020
    InvalidCommitteeProof = 6021
    MoreClientsThanBatches = 6022
    RunIdInvalidLength = 6023
    NotAuthorized = 6024
    ClientKeysInUse = 6025
    InvalidAddressHint = 6026
    ClientNotInEpoch = 6027
    P2pKeyInUse = 6028
    AuthorizationStillValid = 6029
    ClaimExceedsEarned = 6030
    NothingToMigrate = 6031
    NotTheVerifier = 6032
    DuplicateVerdict = 6033
    DisputesFull = 6034
    NoSuchDispute = 6035
    NotATieBreaker = 6036
    DuplicateVote = 6037
    VotingOver = 6038
    DisputeUndecided = 6039
    InDispute = 6040
    BondMissing = 6041
    InvalidInstructionData = 6100
    """Common to all our programs: an argument does not decode, or does not fit."""
    WrongAccount = 6112
    """Common to all our programs: an account is not the one that belongs there."""


_TEXT = {
    ErrorCode.UpdateConfigFinished: "The run is finished; it cannot be changed any more.",
    ErrorCode.UpdateConfigNotHalted: "This can be changed only while the run is paused. Pause it first.",
    ErrorCode.ClientsFull: "All 256 places are taken by clients that are in or have points to claim.",
    ErrorCode.ConfigSanityCheckFailed: "The run's config breaks a rule.",
    ErrorCode.ModelSanityCheckFailed: "The run's model description breaks a rule.",
    ErrorCode.ProgressSanityCheckFailed: "The run's progress breaks a rule: step from 1, sample up to 2^62.",
    ErrorCode.SignerNotAClient: "The signer has never joined this run. Join it first.",
    ErrorCode.InvalidWitness: "The witness is not elected, or attests what it cannot have seen.",
    ErrorCode.InvalidRunState: "The run's state does not allow this now.",
    ErrorCode.DuplicateWitness: "This client's witness is already stored for this round.",
    ErrorCode.InvalidHealthCheck: "The client is not provably unhealthy.",
    ErrorCode.Halted: "The run is halted (uninitialized, paused or finished).",
    ErrorCode.InvalidCheckpoint: "This checkpoint cannot follow the present one.",
    ErrorCode.WitnessesFull: "The round holds all the witnesses it can.",
    ErrorCode.CannotResume: "Only a paused run can be resumed.",
    ErrorCode.RunIdInvalidLength: "A run id has 1 to 32 bytes of UTF-8, none of them zero.",
    ErrorCode.ClientKeysInUse: "The p2p key cannot change while the client takes part in a running epoch.",
    ErrorCode.InvalidAddressHint: "The address hint is not in its canonical packed form.",
    ErrorCode.ClientNotInEpoch: "The signer is not a Healthy client of this epoch.",
    ErrorCode.P2pKeyInUse: "The p2p key is that of another client of the run. Make another one.",
    ErrorCode.AuthorizationStillValid: "The client's authorization still lets it join.",
    ErrorCode.ClaimExceedsEarned: "More points are claimed than were earned and not yet slashed or claimed.",
    ErrorCode.NothingToMigrate: "The account is of this version already, or of one we do not know.",
    ErrorCode.NotTheVerifier: "The signer is not the verifier drawn for this trainer and round.",
    ErrorCode.DuplicateVerdict: "This trainer is accused for this round already, or has been ejected.",
    ErrorCode.DisputesFull: "As many disputes are open as the run can hold. Try again when one is settled.",
    ErrorCode.NoSuchDispute: "There is no open dispute with this evidence.",
    ErrorCode.NotATieBreaker: "The signer is not one of the tie-breakers drawn for this dispute.",
    ErrorCode.DuplicateVote: "This tie-breaker has voted already.",
    ErrorCode.VotingOver: "The tie-breakers' rounds are over, or have not begun.",
    ErrorCode.DisputeUndecided: "The dispute is neither decided nor over yet.",
    ErrorCode.InDispute: "A party to an open dispute can claim or withdraw nothing until it is settled.",
    ErrorCode.BondMissing: "The run asks for a bond. Post it first: run-manager bond post",
    ErrorCode.WrongAccount: "An account is not the one that belongs there.",
    ErrorCode.InvalidInstructionData: "An argument does not fit its field.",
}


class CoordinatorError(RunStateError):
    """A rule of the coordinator refuses an event; nothing has changed. Match by ``code``."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(_TEXT.get(code, code.name))
        self.code = code
